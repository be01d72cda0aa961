"""The committed locks: hashed, consistent with each other and with pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from kit.setup_env.lockfiles import Pin, names_in, normalise, read_lock, subset

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "locks"
PYTHONS = ("py311", "py312")
ALL = sorted(path for path in LOCKS.glob("*.txt") if path.name != "cpu-excludes.txt")


def pins(kind: str, python: str) -> dict[str, Pin]:
    return read_lock(LOCKS / f"{kind}-{python}.txt")


def requirements(path: Path) -> list[Requirement]:
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return [Requirement(line) for line in lines if line]


def test_every_lock_is_there() -> None:
    kinds = ("cpu", "cpu-torch", "cpu-torch-cuda", "cuda13")
    want = {f"{kind}-{python}.txt" for kind in kinds for python in PYTHONS}
    assert {path.name for path in ALL} == want | {"bootstrap.txt"}


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name)
def test_every_line_is_a_pin_a_hash_or_a_comment(path: Path) -> None:
    shape = re.compile(
        r"#.*|\s+#.*|[a-z0-9][a-z0-9.-]*==[\w.+]+ \\|    --hash=sha256:[0-9a-f]{64}( \\)?"
    )
    strange = [line for line in path.read_text().splitlines() if not shape.fullmatch(line)]
    assert strange == []


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name)
def test_every_pin_has_a_hash(path: Path) -> None:
    found = read_lock(path)
    assert found
    assert [pin.name for pin in found.values() if not pin.hashes] == []


@pytest.mark.parametrize("path", sorted(LOCKS.iterdir()), ids=lambda path: path.name)
def test_no_file_names_a_registry(path: Path) -> None:
    assert not re.search(r"https?://|file:|--(extra-)?index|--find-links|@ ", path.read_text())


@pytest.mark.parametrize("python", PYTHONS)
def test_cpu_export_is_the_cuda_resolve_with_packages_left_out(python: str) -> None:
    cuda, cpu = pins("cuda13", python), pins("cpu", python)
    assert set(cpu) < set(cuda)
    differing = {name for name in cpu if cpu[name].version != cuda[name].version}
    assert differing == set()
    assert {name for name in cpu if cpu[name].hashes != cuda[name].hashes} == set()


@pytest.mark.parametrize("python", PYTHONS)
def test_cpu_export_has_nothing_of_what_is_excluded(python: str) -> None:
    cpu = pins("cpu", python)
    assert set(names_in(LOCKS / "cpu-excludes.txt")) & set(cpu) == set()
    heavy = [name for name in cpu if re.match(r"nvidia-(?!ml-py)|cuda-|torch|triton|sgl", name)]
    assert heavy == ["sglang"]


@pytest.mark.parametrize("python", PYTHONS)
def test_every_exclusion_still_names_a_package_or_an_optional_one(python: str) -> None:
    # These two are required by sglang on other platforms only.
    elsewhere = {"av", "decord2"}
    excluded = set(names_in(LOCKS / "cpu-excludes.txt"))
    assert excluded - set(pins("cuda13", python)) == elsewhere


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("kind", ["cpu", "cuda13"])
def test_locks_satisfy_what_the_kit_requires(kind: str, python: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["dependencies"] + project["optional-dependencies"]["test"]
    wanted = [Requirement(line) for line in lines] + requirements(LOCKS / "engine.in")
    if kind == "cuda13":
        wanted += requirements(LOCKS / "cuda13.in")
    locked = pins(kind, python)
    unmet = [
        str(requirement)
        for requirement in wanted
        if normalise(requirement.name) not in locked
        or not requirement.specifier.contains(
            locked[normalise(requirement.name)].version, prereleases=True
        )
    ]
    assert unmet == [], "run `make lock`"


@pytest.mark.parametrize("python", PYTHONS)
def test_torch_fallback_is_a_piece_of_the_cuda_lock(python: str) -> None:
    names = names_in(LOCKS / "cpu-torch-cuda.in")
    text = (LOCKS / f"cpu-torch-cuda-{python}.txt").read_text()
    assert text.endswith("\n" + subset(pins("cuda13", python), names))
    assert "triton" not in names


@pytest.mark.parametrize("python", PYTHONS)
def test_torch_for_the_cpu_is_one_file_of_a_cpu_build(python: str) -> None:
    locked = pins("cpu-torch", python)
    assert list(locked) == ["torch"]
    assert locked["torch"].version.endswith("+cpu")
    assert len(locked["torch"].hashes) == 1


def test_the_engine_is_the_release_with_both_workers() -> None:
    assert pins("cpu", "py311")["sglang"].version == "0.5.12.post1"


def test_a_lock_is_read_with_hashes_and_comments(tmp_path: Path) -> None:
    first, second = "a" * 64, "b" * 64
    path = tmp_path / "lock.txt"
    path.write_text(
        "# header\n"
        f"Some_Name==1.0 \\\n    --hash=sha256:{first} \\\n    --hash=sha256:{second}\n"
        "    # via other\n"
        f"other==2.0+cpu \\\n    --hash=sha256:{first}\n"
    )
    found = read_lock(path)
    assert {name: pin.version for name, pin in found.items()} == {
        "some-name": "1.0",
        "other": "2.0+cpu",
    }
    assert found["some-name"].hashes == [first, second]
    assert subset(found, ["other"]) == f"other==2.0+cpu \\\n    --hash=sha256:{first}\n"
    with pytest.raises(KeyError):
        subset(found, ["absent"])
