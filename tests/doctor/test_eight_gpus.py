"""Eight GPUs as NVML would answer for them, made up: one card that is not like the others must be seen and named."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kit import fingerprint as fp
from kit import nvml
from kit.doctor.cards import spans
from kit.doctor.probes import Host, Job
from kit.doctor.run import CHECKS, examine
from kit.nvml import Gpu, RecordedNvml
from kit.scenarios import load_rig
from kit.telemetry import TelemetryHeader, TelemetrySample
from kit.telemetry.gpu import sample_gpu
from kit.verdict.machine import machine_findings
from tests.factory import level_record, manifest, run_data

COUNT = 8
RIG = load_rig("rtx-pro-6000-x8")
# A process's own view of its family would need a host; the pids here are of nobody.
QUICK = [c for c in CHECKS if c.id.startswith(("gpu.", "topology.")) and c.id != "topology.iommu"]
MEMORY = {"total": 102641958912, "free": 102000000000, "used": 641958912}


def answers() -> dict[str, Any]:
    """Eight cards, all well, each linked to each by NVLink."""
    found: dict[str, Any] = {
        "DeviceGetCount()": COUNT,
        "SystemGetDriverVersion()": "580.95.05",
        "SystemGetCudaDriverVersion_v2()": 13000,
    }
    for i in range(COUNT):
        each: dict[str, Any] = {
            "DeviceGetName({})": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "DeviceGetUUID({})": f"GPU-{i}",
            "DeviceGetCudaComputeCapability({})": [12, 0],
            "DeviceGetMemoryInfo({})": MEMORY,
            "DeviceGetEccMode({})": [1, 1],
            "DeviceGetTotalEccErrors({}, 1, 0)": 0,
            "DeviceGetEnforcedPowerLimit({})": 600000,
            "DeviceGetPowerManagementDefaultLimit({})": 600000,
            "DeviceGetPowerUsage({})": 550000,
            "DeviceGetClockInfo({}, 1)": 2430,
            "DeviceGetMaxClockInfo({}, 1)": 2430,
            "DeviceGetCurrentClocksEventReasons({})": 0,
            "DeviceGetTemperature({}, 0)": 60,
            "DeviceGetPersistenceMode({})": 1,
            "DeviceGetMigMode({})": [0, 0],
            "DeviceGetComputeRunningProcesses({})": [],
            "DeviceGetCurrPcieLinkGeneration({})": 5,
            "DeviceGetMaxPcieLinkGeneration({})": 5,
            "DeviceGetCurrPcieLinkWidth({})": 16,
            "DeviceGetMaxPcieLinkWidth({})": 16,
        }
        found |= {name.format(f"gpu {i}"): value for name, value in each.items()}
    for a, b in itertools.permutations(range(COUNT), 2):
        found[f"DeviceGetTopologyCommonAncestor(gpu {a}, gpu {b})"] = 30
        for kind in (nvml.P2P_READ, nvml.P2P_WRITE, nvml.P2P_NVLINK):
            found[f"DeviceGetP2PStatus(gpu {a}, gpu {b}, {kind})"] = 0
    return found


def of(card: int, kind: int, status: int) -> dict[str, Any]:
    """Return the answers about peer access of one card with all others, both ways."""
    return {
        f"DeviceGetP2PStatus(gpu {a}, gpu {b}, {kind})": status
        for a, b in itertools.permutations(range(COUNT), 2)
        if card in (a, b)
    }


def everybody(kind: int, status: int) -> dict[str, Any]:
    return {k: v for card in range(COUNT) for k, v in of(card, kind, status).items()}


P2P_OFF = everybody(nvml.P2P_READ, 4) | everybody(nvml.P2P_WRITE, 4)
ONE_P2P_OFF = of(2, nvml.P2P_READ, 1) | of(2, nvml.P2P_WRITE, 1)
FOREIGN = {
    "DeviceGetComputeRunningProcesses(gpu 6)": [{"pid": 999999999, "usedGpuMemory": 20 << 30}],
    "DeviceGetMemoryInfo(gpu 6)": {"total": 96 << 30, "free": 76 << 30, "used": 20 << 30},
}


def warnings(changes: dict[str, Any], root: Path = Path("/")) -> dict[str, str]:
    """Return what is not ok, by check, of every check of GPUs and their wiring."""
    machine = Host(nvml=RecordedNvml(answers() | changes), environ={}, root=root)
    report = examine(machine, Job(RIG), QUICK)
    assert not report.having("unavailable")
    return {r.id: r.seen for r in report.results if r.status != "ok"}


def test_eight_cards_that_are_well_give_no_warning() -> None:
    assert warnings({}) == {}
    on_pcie = everybody(nvml.P2P_NVLINK, 5)
    assert warnings(on_pcie) == {}


CASES: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    (
        "PCIe width of one",
        {"DeviceGetCurrPcieLinkWidth(gpu 3)": 8},
        {"topology.pcie": "GPU 3: Gen5 x8 of Gen5 x16; GPU 0–2, 4–7: Gen5 x16 of Gen5 x16"},
    ),
    (
        "one card in a slot of fewer lanes",
        {"DeviceGetCurrPcieLinkWidth(gpu 3)": 8, "DeviceGetMaxPcieLinkWidth(gpu 3)": 8},
        {"topology.pcie": "GPU 3: Gen5 x8 of Gen5 x8; GPU 0–2, 4–7: Gen5 x16 of Gen5 x16"},
    ),
    (
        "PCIe generation of one, under load",
        {"DeviceGetCurrPcieLinkGeneration(gpu 7)": 3},
        {"topology.pcie": "GPU 7: Gen3 x16 of Gen5 x16; GPU 0–6: Gen5"},
    ),
    (
        "NVLink absent at one",
        of(5, nvml.P2P_NVLINK, 5),
        {"topology.links": "21 pairs NVLINK, 7 pairs PHB; no NVLink at GPU 5"},
    ),
    (
        "NVLink absent between two halves",
        {
            f"DeviceGetP2PStatus(gpu {a}, gpu {b}, {nvml.P2P_NVLINK})": 5
            for a, b in itertools.permutations(range(COUNT), 2)
            if (a < 4) != (b < 4)
        },
        {"topology.links": "16 pairs PHB, 12 pairs NVLINK"},
    ),
    (
        "P2P off",
        P2P_OFF,
        {
            "topology.p2p": "read: disabled by registry key in 56 of 56 directions, "
            "write: disabled by registry key in 56 of 56 directions"
        },
    ),
    (
        "P2P off at one",
        ONE_P2P_OFF,
        {
            "topology.p2p": "write: chipset not supported in 14 of 56 directions; all of them with GPU 2"
        },
    ),
    (
        "one throttled",
        {
            "DeviceGetCurrentClocksEventReasons(gpu 4)": 0x40,
            "DeviceGetTemperature(gpu 4, 0)": 92,
        },
        {"gpu.throttle": "GPU 4: hardware thermal slowdown, 92 °C; GPU 0–3, 5–7: nothing"},
    ),
    (
        "foreign process on one",
        FOREIGN,
        {
            "gpu.processes": "GPU 6: pid 999999999 of the host (20480 MiB)",
            "gpu.memory": "GPU 6: 77824 of 98304 MiB free",
        },
    ),
    (
        "power limit of one",
        {"DeviceGetEnforcedPowerLimit(gpu 1)": 450000},
        {"gpu.power": "GPU 1: 450 W of 600 W; GPU 0, 2–7: 600 W of 600 W"},
    ),
    (
        "ECC of one",
        {"DeviceGetEccMode(gpu 1)": [0, 0]},
        {"gpu.ecc": "GPU 1: ECC off; GPU 0, 2–7: ECC on"},
    ),
]


@pytest.mark.parametrize(("changes", "wanted"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_the_odd_card_is_named_and_nothing_else_is_blamed(
    changes: dict[str, Any], wanted: dict[str, str]
) -> None:
    found = warnings(changes)
    assert set(found) == set(wanted)
    for check, said in wanted.items():
        assert said in found[check]


def test_seven_cards_are_too_few_for_the_published_rig() -> None:
    machine = Host(nvml=RecordedNvml(answers() | {"DeviceGetCount()": 7}), environ={})
    found = {r.id: r for r in examine(machine, Job(RIG), QUICK).results}
    assert found["gpu.model"].status == "blocker"
    assert "needs 8" in found["gpu.model"].seen


def test_the_drivers_options_stand_beside_closed_peer_access(tmp_path: Path) -> None:
    params = tmp_path / "proc/driver/nvidia/params"
    params.parent.mkdir(parents=True)
    params.write_text('RmMsg: ""\nRegistryDwords: "ForceP2P=0x0;RMForceP2PType=1"\n')
    assert (
        "driver options ForceP2P=0x0;RMForceP2PType=1"
        in warnings(P2P_OFF, tmp_path)["topology.p2p"]
    )


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        (of(5, nvml.P2P_NVLINK, 5), "topology"),
        (P2P_OFF, "p2p"),
        (ONE_P2P_OFF, "p2p"),
        ({"DeviceGetMaxPcieLinkWidth(gpu 3)": 8}, "gpus"),
    ],
)
def test_a_machine_that_is_wired_otherwise_is_not_comparable(
    changes: dict[str, Any], field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for more in ({}, changes):

        @contextmanager
        def recorded(more: dict[str, Any] = more) -> Any:
            yield RecordedNvml(answers() | more)

        monkeypatch.setattr(nvml, "opened", recorded)
        found.append(fp.collect())
    good, bad = found
    assert (len(good.gpus), len(good.topology), good.p2p) == (8, 28, True)
    assert fp.compare(good, bad) == fp.Tier.SAME_SKU
    assert [line.split(":")[0] for line in fp.differences(good, bad)] == [field]


def test_telemetry_names_the_one_that_throttles_and_the_one_that_is_shared() -> None:
    def moment(t: float) -> TelemetrySample:
        one = RecordedNvml(
            answers() | FOREIGN | {"DeviceGetCurrentClocksEventReasons(gpu 4)": 0x40}
        )
        gpus = [sample_gpu(one, Gpu(i), lambda _: False) for i in range(COUNT)]
        return TelemetrySample(t=t, gpus=gpus)

    run = run_data(
        [level_record(t=10.0, wall_s=10.0)],
        telemetry=[moment(t) for t in range(12)],
        telemetry_header=TelemetryHeader(t=0, interval_s=1, cpus=2),
        manifest=manifest(),
    )
    found = {f.id: f for f in machine_findings(run)}
    assert set(found) == {"gpu-throttled", "gpu-shared"}
    assert found["gpu-throttled"].seen.startswith("GPU 4 slowed itself down")
    assert "pid 999999999 on GPU 6" in found["gpu-shared"].seen
    assert found["gpu-shared"].severity == "invalid"


@pytest.mark.parametrize(
    ("indices", "text"),
    [([3], "3"), ([0, 1, 2, 4, 6, 7], "0–2, 4, 6–7"), (list(range(8)), "0–7")],
)
def test_spans(indices: list[int], text: str) -> None:
    assert spans(indices) == text
