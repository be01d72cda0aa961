from __future__ import annotations

import getpass
import json
import socket
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from kit import fingerprint as fp
from kit import fingerprint_fields as fields
from kit import nvml
from kit.cli import cli
from kit.errors import UserError
from kit.fingerprint import Fingerprint, Gpu, Tier, compare, differences


def machine(**changes: Any) -> Fingerprint:
    data: dict[str, Any] = {
        "cpu_model": "EPYC",
        "cpu_cores": 2,
        "cpu_flags": ["avx2"],
        "memory_gib": 24,
        "memory_limit_gib": None,
        "kernel": "6.1",
        "os": "debian 12",
        "virtualised": True,
        "python": "3.11.2",
        "packages": {"torch": "2"},
        "driver": None,
        "gpus": [],
        "topology": [],
    }
    return Fingerprint.model_validate({**data, **changes})


GPU = Gpu(name="H200", memory_mib=143771, sm="9.0", power_limit_w=700)


@pytest.mark.parametrize(
    ("a", "b", "tier"),
    [
        (machine(), machine(), Tier.SAME_MACHINE_CLASS),
        (machine(), machine(packages={"torch": "3"}), Tier.SAME_SKU_AND_TOPOLOGY),
        (machine(), machine(cpu_model="Xeon"), Tier.OTHER),
        (machine(), machine(cpu_cores=64), Tier.OTHER),
        (machine(gpus=[GPU]), machine(), Tier.OTHER),
        (machine(gpus=[GPU]), machine(gpus=[GPU], cpu_model="Xeon"), Tier.SAME_SKU_AND_TOPOLOGY),
        (machine(gpus=[GPU]), machine(gpus=[GPU, GPU], topology=["0-1 SYS"]), Tier.SAME_SKU),
        (
            machine(gpus=[GPU, GPU], topology=["0-1 SYS"]),
            machine(gpus=[GPU, GPU], topology=["0-1 NVLINK"]),
            Tier.SAME_SKU,
        ),
        (
            machine(gpus=[GPU]),
            machine(gpus=[GPU.model_copy(update={"power_limit_w": 300})]),
            Tier.OTHER,
        ),
        (
            machine(gpus=[GPU], driver="580"),
            machine(gpus=[GPU], driver="581"),
            Tier.SAME_SKU_AND_TOPOLOGY,
        ),
    ],
)
def test_tiers(a: Fingerprint, b: Fingerprint, tier: Tier) -> None:
    assert compare(a, b) == compare(b, a) == tier


def test_hash_is_stable_and_changes_with_any_field() -> None:
    assert machine().hash == machine().hash
    assert machine().hash != machine(kernel="6.2").hash
    assert (
        Fingerprint.model_validate_json(machine(gpus=[GPU]).model_dump_json()).hash
        == machine(gpus=[GPU]).hash
    )


def test_this_host_is_described_without_names() -> None:
    text = json.dumps(fp.collect().model_dump(mode="json"))
    assert fp.collect().cpu_cores >= 1
    assert socket.gethostname() not in text
    user = getpass.getuser()
    assert user == "root" or user not in text


def test_differences_say_what_a_field_is() -> None:
    (line,) = differences(machine(), machine(memory_gib=48))
    assert line == "memory_gib: 24 → 48  (memory, GiB, rounded)"


class FakeNvml:
    """NVML of a made-up host; what a card does not support raises."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_P2P_CAPS_INDEX_NVLINK = 1, 2, 3

    def __init__(self, count: int) -> None:
        self.count = count

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"580.1"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self.count

    def nvmlDeviceGetHandleByIndex(self, i: int) -> int:  # noqa: N802
        return i

    def nvmlDeviceGetName(self, _: int) -> bytes:  # noqa: N802
        return b"NVIDIA RTX PRO 6000"

    def nvmlDeviceGetMemoryInfo(self, _: int) -> Any:  # noqa: N802
        return SimpleNamespace(total=96 << 30)

    def nvmlDeviceGetCudaComputeCapability(self, _: int) -> tuple[int, int]:  # noqa: N802
        return (12, 0)

    def nvmlDeviceGetTopologyCommonAncestor(self, a: int, b: int) -> int:  # noqa: N802
        return 50 if (a + b) % 2 else 30

    def __getattr__(self, name: str) -> Any:
        def unsupported(*_: Any) -> None:
            raise RuntimeError("not supported")

        return unsupported


def test_gpus_and_their_wiring_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import contextmanager

    @contextmanager
    def fake() -> Any:
        yield nvml.LibraryNvml(FakeNvml(3))

    monkeypatch.setattr(nvml, "opened", fake)
    found = fp.collect()
    assert found.driver == "580.1"
    assert fp.gpu_names() == ["NVIDIA RTX PRO 6000"] * 3
    assert found.gpus[0] == Gpu(name="NVIDIA RTX PRO 6000", memory_mib=96 << 10, sm="12.0")
    assert found.topology == ["0-1 SYS", "0-2 PHB", "1-2 SYS"]


def test_the_silicon_must_match_and_nothing_else_is_asked() -> None:
    assert fp.must_match(machine(gpus=[GPU])) == ("gpus", "topology", "p2p")
    for name in fp.must_match(machine()):
        value = {"cpu_model": "Xeon", "cpu_cores": 3, "cpu_flags": []}[name]
        assert compare(machine(), machine(**{name: value})) == Tier.OTHER


def test_files_can_be_compared_and_a_wrong_one_is_one_sentence(tmp_path: Path) -> None:
    one, two, bad = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "c.json"
    one.write_text(machine().model_dump_json())
    two.write_text(machine(memory_gib=48).model_dump_json())
    bad.write_text("{}")
    done = CliRunner().invoke(cli, ["fingerprint", "diff", str(one), str(two)])
    assert done.output.splitlines() == [
        "Tier: the same machine class and software",
        "memory_gib: 24 → 48  (memory, GiB, rounded)",
    ]
    done = CliRunner().invoke(cli, ["fingerprint", "diff", str(one), str(bad)])
    assert isinstance(done.exception, UserError)


def test_a_recorded_h200_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers are those of the host whose fingerprint stands in the run folder of the same lease."""
    from contextlib import contextmanager

    @contextmanager
    def recorded() -> Any:
        yield nvml.RecordedNvml.load(Path(__file__).parent / "doctor" / "fixtures" / "h200.json")

    monkeypatch.setattr(nvml, "opened", recorded)
    found = fp.collect()
    results = Path(__file__).parent.parent / "benchmarks" / "gpu" / "results"
    with tarfile.open(results / "20261201-h200-core.tar.xz") as archive:
        member = archive.extractfile("20261201-h200-core/run.json")
        assert member is not None
        then = Fingerprint.model_validate(json.load(member)["fingerprint"])
    assert found.gpus == then.gpus
    assert (found.driver, found.topology) == (then.driver, then.topology)
    assert fp.gpu_names() == ["NVIDIA H200"]


FULL = Gpu(
    name="H200",
    memory_mib=143771,
    sm="9.0",
    power_limit_w=700,
    max_sm_mhz=1980,
    max_memory_mhz=3201,
    pcie_generation_max=5,
    pcie_width_max=16,
    ecc=True,
)
OTHERWISE: dict[str, Any] = {
    "schema_version": 2,
    "cpu_model": "Xeon",
    "cpu_cores": 3,
    "cpu_flags": [],
    "memory_gib": 48,
    "memory_limit_gib": 4.0,
    "kernel": "6.2",
    "os": "ubuntu 24.04",
    "virtualised": False,
    "python": "3.12.1",
    "packages": {"torch": "3"},
    "driver": "590",
    "gpus": [FULL],
    "topology": ["0-1 SYS"],
    "p2p": False,
    "gpus.name": "H100",
    "gpus.memory_mib": 1,
    "gpus.sm": "12.0",
    "gpus.power_limit_w": 300,
    "gpus.max_sm_mhz": 1,
    "gpus.max_memory_mhz": 1,
    "gpus.pcie_generation_max": 4,
    "gpus.pcie_width_max": 8,
    "gpus.ecc": False,
}


def test_every_field_is_described_and_none_that_is_not_there() -> None:
    real = [n for n in Fingerprint.model_fields if n != "gpus"] + ["gpus"]
    real += [f"gpus.{n}" for n in Gpu.model_fields]
    assert sorted(f.name for f in fields.FIELDS) == sorted(real)
    assert all(f.why.endswith(".") for f in fields.FIELDS)


@pytest.mark.parametrize("field", fields.FIELDS, ids=lambda f: f.name)
def test_what_the_description_says_must_match_is_what_compare_asks(field: fields.Field) -> None:
    pair = machine(gpus=[FULL, FULL], topology=["0-1 NVLINK"], p2p=True, driver="580")
    for whole in (machine(), pair):
        new = OTHERWISE[field.name]
        if field.name.startswith("gpus."):
            if not whole.gpus:
                continue
            second = FULL.model_copy(update={field.name.removeprefix("gpus."): new})
            other = whole.model_copy(update={"gpus": [FULL, second]})
        elif not whole.gpus and field.name in ("gpus", "topology", "p2p"):
            continue
        else:
            other = whole.model_copy(update={field.name: new})
        tier = compare(whole, other)
        assert tier == compare(other, whole)
        comparable = tier >= Tier.SAME_SKU_AND_TOPOLOGY
        assert comparable != (field.match == f"with{'' if whole.gpus else 'out'} GPUs")
        if comparable:
            asked = field.match == "class" or field.also_class
            assert (tier < Tier.SAME_MACHINE_CLASS) == asked


def test_what_one_side_does_not_know_is_not_held_against_the_other() -> None:
    bare = FULL.model_copy(update=dict.fromkeys(("pcie_generation_max", "pcie_width_max", "ecc")))
    known = machine(gpus=[FULL, FULL], topology=["0-1 NVLINK"], p2p=True)
    unknown = machine(gpus=[bare, bare], topology=["0-1 NVLINK"])
    assert compare(known, unknown) == Tier.SAME_MACHINE_CLASS


def test_the_hash_of_a_run_folder_from_before_p2p_still_holds() -> None:
    results = Path(__file__).parent.parent / "benchmarks" / "gpu" / "results"
    with tarfile.open(results / "20261201-h200-core.tar.xz") as archive:
        member = archive.extractfile("20261201-h200-core/run.json")
        assert member is not None
        manifest = json.load(member)
    then = Fingerprint.model_validate(manifest["fingerprint"])
    assert then.hash == manifest["fingerprint_hash"]
    assert then.model_copy(update={"p2p": True}).hash != then.hash


def test_describe_and_the_documentation_say_the_same() -> None:
    page = (Path(__file__).parent.parent / "docs" / "doctor.md").read_text()
    assert fields.markdown_table() in page
    assert fields.NOTE in page
    done = CliRunner().invoke(cli, ["fingerprint", "--describe", "--json"])
    listed = json.loads(done.output)["fields"]
    assert [tuple(f.values()) for f in listed] == [
        (name, unit or None, why, must) for name, unit, why, must in fields.rows()
    ]
    text = CliRunner().invoke(cli, ["fingerprint", "--describe"]).output
    for name, unit, why, must in fields.rows():
        assert (f"{name} ({unit})\n" if unit else f"{name}\n") in text
        assert why in text
        assert f"must match: {must}" in text
