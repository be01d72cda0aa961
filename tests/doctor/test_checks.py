"""Checks against NVML's recorded answers and made-up hosts."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kit.backends import leftovers
from kit.compose.render import image_name
from kit.doctor.kernels import judge_kernel, judge_nccl
from kit.doctor.models import misfits
from kit.doctor.probes import Host, Job, Outcome, run_command
from kit.doctor.run import CHECKS, examine
from kit.nvml import RecordedNvml
from kit.scenarios import Rig, load_rig

FIXTURES = Path(__file__).parent / "fixtures"
RECORDED = FIXTURES / "h200.json"
QUICK = {c.id: c for c in CHECKS if not c.once}


def rig(**changes: Any) -> Rig:
    data = load_rig("cuda").model_dump(by_alias=True)
    return Rig.model_validate({**data, "tensor_parallel": 2, **changes})


def host(changes: dict[str, Any] | None = None, **other: Any) -> Host:
    nvml = RecordedNvml.load(FIXTURES / "synthetic-two-gpus.json")
    nvml.answers |= changes or {}
    return dataclasses.replace(Host(nvml=nvml, environ={}), **other)


def look(check: str, machine: Host, job: Job | None = None) -> tuple[str, str]:
    result = QUICK[check].run(machine, job or Job(rig()))
    return result.status, result.seen


WELL = [
    c
    for c in QUICK
    if c.startswith(("gpu.", "topology.")) and c not in ("topology.iommu", "gpu.processes")
]


@pytest.mark.parametrize("check", WELL)
def test_a_good_pair_of_gpus_passes(check: str) -> None:
    status, seen = look(check, host())
    assert status == "ok", seen


BAD = [
    ("gpu.driver", {"SystemGetDriverVersion()": "575.1"}, "blocker", "575.1"),
    ("gpu.model", {"DeviceGetCount()": 1}, "blocker", "needs 2"),
    ("gpu.sm", {"DeviceGetCudaComputeCapability(gpu 1)": [7, 0]}, "blocker", "7.0"),
    ("gpu.sm", {"DeviceGetCudaComputeCapability(gpu 1)": [7, 5]}, "blocker", "7.5"),
    (
        "gpu.memory",
        {"DeviceGetMemoryInfo(gpu 1)": {"total": 96 << 30, "free": 1 << 30, "used": 95 << 30}},
        "blocker",
        "1024 of",
    ),
    (
        "gpu.memory",
        {"DeviceGetMemoryInfo(gpu 1)": {"total": 96 << 30, "free": 60 << 30, "used": 36 << 30}},
        "warning",
        "61440 of",
    ),
    ("gpu.ecc", {"DeviceGetEccMode(gpu 1)": [1, 0]}, "warning", "waits for a restart on GPU 1"),
    ("gpu.ecc", {"DeviceGetTotalEccErrors(gpu 0, 1, 0)": 3}, "warning", "3 uncorrected"),
    ("gpu.power", {"DeviceGetEnforcedPowerLimit(gpu 0)": 300000}, "warning", "300 W of 600 W"),
    ("gpu.clocks", {"DeviceGetCurrentClocksEventReasons(gpu 0)": 2}, "warning", "application"),
    ("gpu.throttle", {"DeviceGetCurrentClocksEventReasons(gpu 0)": 0x40}, "warning", "thermal"),
    ("gpu.throttle", {"DeviceGetTemperature(gpu 1, 0)": 91}, "warning", "91 °C"),
    ("gpu.persistence", {"DeviceGetPersistenceMode(gpu 1)": 0}, "warning", "GPU 1: off"),
    ("gpu.mig", {"DeviceGetMigMode(gpu 0)": [1, 1]}, "warning", "MIG on"),
    ("topology.pcie", {"DeviceGetCurrPcieLinkWidth(gpu 1)": 8}, "warning", "Gen5 x8 of Gen5 x16"),
    ("topology.pcie", {"DeviceGetCurrentClocksEventReasons(gpu 0)": 0}, "warning", "Gen1"),
    ("topology.links", {"DeviceGetTopologyCommonAncestor(gpu 0, gpu 1)": 50}, "warning", "SYS"),
    ("topology.p2p", {"DeviceGetP2PStatus(gpu 1, gpu 0, 1)": 1}, "warning", "write: chipset"),
    (
        "gpu.processes",
        {"DeviceGetComputeRunningProcesses(gpu 0)": [{"pid": 999999999, "usedGpuMemory": 5 << 30}]},
        "warning",
        "pid 999999999",
    ),
    (
        "gpu.processes",
        {"DeviceGetMemoryInfo(gpu 0)": {"total": 96 << 30, "free": 80 << 30, "used": 16 << 30}},
        "warning",
        "held by no process",
    ),
]


@pytest.mark.parametrize(("check", "change", "status", "said"), BAD)
def test_what_is_wrong_is_seen(check: str, change: dict[str, Any], status: str, said: str) -> None:
    got, seen = look(check, host(change))
    assert (got, said in seen) == (status, True), seen


@pytest.mark.parametrize("check", [c for c in WELL if c not in ("gpu.driver", "gpu.model")])
def test_a_driver_that_answers_nothing_never_gives_ok_or_fails(check: str) -> None:
    silent = Host(nvml=RecordedNvml({"DeviceGetCount()": 2}), environ={})
    status, seen = look(check, silent)
    assert status in ("unavailable", "warning") or "no MIG" in seen or check == "gpu.ecc", seen
    assert "the check itself failed" not in seen


def test_visible_devices_choose_the_gpus() -> None:
    change = {"DeviceGetPersistenceMode(gpu 1)": 0}
    one = Job(rig(tensor_parallel=1))
    assert look("gpu.persistence", host(change, environ={}), one)[0] == "ok"
    for named in ("1", "GPU-bb"):
        machine = host(change, environ={"CUDA_VISIBLE_DEVICES": named})
        assert look("gpu.persistence", machine, one)[0] == "warning"


def fake_root(tmp_path: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "status"), [("quiet", "warning"), ("quiet iommu=pt", "ok"), ("amd_iommu=off", "ok")]
)
def test_iommu_on_the_kernel_command_line(tmp_path: Path, line: str, status: str) -> None:
    root = fake_root(tmp_path, {"proc/cmdline": line, "sys/kernel/iommu_groups/0/type": "DMA"})
    assert look("topology.iommu", host(root=root))[0] == status


LIMITS = (
    "Max processes 9000 9000 processes\nMax open files {} 9999 files\n"
    "Max locked memory unlimited unlimited bytes\n"
)
HOSTS = [
    ("host.ulimits", {"proc/self/limits": LIMITS.format(65536)}, "ok"),
    ("host.ulimits", {"proc/self/limits": LIMITS.format(200)}, "blocker"),
    (
        "host.clock",
        {"sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc"},
        "ok",
    ),
    (
        "host.clock",
        {"sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet"},
        "warning",
    ),
    ("host.clock", {}, "unavailable"),
    (
        "host.governor",
        {"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave"},
        "warning",
    ),
    (
        "host.governor",
        {"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance"},
        "ok",
    ),
    ("host.governor", {}, "unavailable"),
    ("host.ram", {"proc/meminfo": "MemTotal: 33554432 kB\nMemAvailable: 31457280 kB\n"}, "ok"),
    ("host.ram", {"proc/meminfo": "MemTotal: 33554432 kB\nMemAvailable: 524288 kB\n"}, "blocker"),
    ("host.memory-limit", {"sys/fs/cgroup/memory.max": str(1 << 30)}, "blocker"),
    ("host.memory-limit", {"sys/fs/cgroup/memory.max": "max"}, "ok"),
]


@pytest.mark.parametrize(("check", "files", "status"), HOSTS)
def test_hosts(tmp_path: Path, check: str, files: dict[str, str], status: str) -> None:
    got, seen = look(check, Host(root=fake_root(tmp_path, files), environ={}), Job(load_rig("cpu")))
    assert got == status, seen


@pytest.mark.parametrize(
    ("size", "gpus", "status"),
    [(64 << 20, 1, "warning"), (64 << 20, 2, "blocker"), (16 << 30, 2, "ok")],
)
def test_shared_memory(size: int, gpus: int, status: str) -> None:
    machine = host(usage=lambda _: (size, 0, size))
    assert look("host.shm", machine, Job(rig(tensor_parallel=gpus)))[0] == status


def test_stolen_and_shared_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = tmp_path / "proc/stat"
    fake_root(tmp_path, {"proc/stat": "cpu 0 0 0 0 0 0 0 0 0 0\n"})
    later = {"steal": "cpu 5 0 0 85 0 0 0 10 0 0\n", "busy": "cpu 60 0 0 40 0 0 0 0 0 0\n"}
    for text in later.values():
        fake_root(tmp_path, {"proc/stat": "cpu 0 0 0 0 0 0 0 0 0 0\n"})
        monkeypatch.setattr("kit.doctor.host.time.sleep", lambda _, t=text: stat.write_text(t))
        assert look("host.load", Host(root=tmp_path, environ={}))[0] == "warning"


TARGET = {"hidden_size": 64, "vocab_size": 1000}


@pytest.mark.parametrize(
    ("draft", "tensors", "said"),
    [
        ({"hidden_size": 64, "vocab_size": 1000}, {"fc.weight": [64, 192]}, None),
        ({"hidden_size": 64, "vocab_size": 1000}, {"fc.weight": [64, 96]}, "takes 96"),
        ({"hidden_size": 32, "vocab_size": 1000}, {}, "hidden size is 32"),
        ({"hidden_size": 64, "vocab_size": 999}, {}, "999 tokens"),
        ({"hidden_size": 64}, {"t2d": [900]}, "covers 900"),
        ({"hidden_size": 64, "draft_vocab_size": 50}, {"d2t": [40]}, "40 entries"),
    ],
)
def test_a_draft_that_does_not_fit(draft: dict[str, Any], tensors: Any, said: str | None) -> None:
    found = misfits(TARGET, draft, tensors)
    assert (not found) if said is None else any(said in text for text in found)


def answer(**fields: Any) -> Outcome:
    return Outcome(0, "noise\n" + json.dumps(fields) + "\n")


RIGHT = {"version": "1", "what": "a sum", "device": "H200"}


@pytest.mark.parametrize(
    ("outcome", "needed", "status"),
    [
        (answer(**RIGHT, right=True), True, "ok"),
        (answer(**RIGHT, right=False), True, "blocker"),
        (answer(error="no kernel image"), True, "blocker"),
        (answer(error="no kernel image"), False, "warning"),
        (answer(missing="No module"), True, "blocker"),
        (Outcome(None, ""), True, "blocker"),
        (Outcome(-11, "Segmentation fault"), True, "blocker"),
    ],
)
def test_kernel_probes(outcome: Outcome, needed: bool, status: str) -> None:
    assert judge_kernel("triton", 60, outcome, needed=needed).status == status


def test_all_reduce_that_hangs_is_a_blocker() -> None:
    assert judge_nccl(2, Outcome(None, "")).status == "blocker"
    assert judge_nccl(2, answer(error="ncclSystemError")).status == "blocker"
    assert judge_nccl(2, answer(right=True, small_us=20.0, bus_gb_s=40.0)).status == "ok"


def test_a_command_that_hangs_is_killed_with_its_children() -> None:
    code = (
        "import subprocess, time\n"
        "print(subprocess.Popen(['sleep', '600']).pid, flush=True)\n"
        "time.sleep(600)"
    )
    done = run_command([sys.executable, "-c", code], 2, os.environ)
    assert done.code is None
    # A killed process lets go of its output before it is gone, so its parent may be told first.
    pid, deadline = int(done.output), time.monotonic() + 60
    while leftovers.is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not leftovers.is_running(pid)


def test_a_check_that_fails_does_not_stop_the_others() -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("oops")

    bad = dataclasses.replace(QUICK["gpu.driver"], look=broken)
    report = examine(host(), Job(rig()), [bad, QUICK["gpu.sm"]])
    assert [r.status for r in report.results] == ["unavailable", "ok"]
    assert "oops" in report.results[0].seen


@pytest.mark.skipif(not RECORDED.is_file(), reason="no recording of an H200 in the tree")
@pytest.mark.parametrize("check", [c for c in WELL if c.startswith("gpu.")])
def test_a_recorded_h200_is_understood(check: str) -> None:
    machine = Host(nvml=RecordedNvml.load(RECORDED), environ={})
    status, seen = look(check, machine, Job(load_rig("h200")))
    assert status in ("ok", "warning"), seen


@pytest.mark.parametrize(
    ("tags", "environ", "status"),
    [
        ([image_name("cpu")], {}, "ok"),
        ([image_name("cuda13"), "kit-cpu:old"], {}, "blocker"),
        (["mine:1"], {"KIT_IMAGE": "mine:1"}, "ok"),
        ([image_name("cpu")], {"KIT_IMAGE": "mine:1"}, "blocker"),
    ],
)
def test_the_disk_is_too_small_only_where_the_image_is_not_there_yet(
    tags: list[str], environ: dict[str, str], status: str
) -> None:
    engine = SimpleNamespace(
        info=dict,
        images=SimpleNamespace(list=lambda: [SimpleNamespace(tags=tags)]),
        close=lambda: None,
    )
    little = Host(environ=environ, docker=lambda: engine, usage=lambda _: (9, 8, 1))
    seen = QUICK["docker.disk"].run(little, Job(load_rig("cpu"), "compose"))
    assert seen.status == status, seen.seen


@pytest.mark.parametrize("closed", ["runs", "pairs"])
def test_a_folder_that_cannot_be_written_to_is_a_blocker(
    closed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked of the kernel and not read off the mode, since a root file system may be read-only for root too."""
    real = os.access
    monkeypatch.setenv("KIT_PAIRS", str(tmp_path / "pairs"))
    for name in ("runs", "pairs"):
        (tmp_path / name).mkdir()
    shut = tmp_path / closed
    monkeypatch.setattr("os.access", lambda path, *a, **k: path != shut and real(path, *a, **k))
    job = Job(load_rig("cpu"), "process", runs=tmp_path / "runs" / "later")
    seen = QUICK["host.disk"].run(Host(usage=lambda _: (1 << 50, 0, 1 << 50)), job)
    assert seen.status == "blocker", seen.seen
    assert f"cannot be written to {shut}" in seen.seen
    monkeypatch.setattr("os.access", real)
    seen = QUICK["host.disk"].run(Host(usage=lambda _: (1 << 50, 0, 1 << 50)), job)
    assert seen.status == "ok", seen.seen
