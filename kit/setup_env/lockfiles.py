"""The lock files: reading them, taking a subset, and making them anew (``make lock``)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kit.setup_env.console import Runner, say

# Everything published until 2026-06-01, the last day on which the engine's requirements resolve to a set that
# works. Said as an instant, since a bare date would depend on the time zone of the host.
EXCLUDE_NEWER = "2026-06-02T00:00:00Z"
PYTHONS = ("3.11", "3.12")
PLATFORM = "x86_64-manylinux_2_34"
HEADER = "# This file was made by `make lock`; change the .in files beside it instead.\n"


@dataclass(frozen=True)
class Pin:
    """One package of a lock.

    Attributes:
        name: Normalised name.
        version: Exact version.
        text: Its lines in the file, hashes and comments included.
    """

    name: str
    version: str
    text: str

    @property
    def hashes(self) -> list[str]:
        """The SHA-256 digests of the files that may be installed."""
        return re.findall(r"--hash=sha256:([0-9a-f]{64})", self.text)


def normalise(name: str) -> str:
    """Return a package name as indexes spell it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def tag(python: str) -> str:
    """Return the file-name piece of a Python version: ``3.11`` → ``py311``."""
    return "py" + python.replace(".", "")


def read_lock(path: Path) -> dict[str, Pin]:
    """Read a lock.

    Returns:
        Pins by normalised name, in the file's order.
    """
    pins: dict[str, Pin] = {}
    blocks = re.split(r"(?m)^(?=[A-Za-z0-9])", path.read_text(encoding="utf-8"))
    for block in blocks:
        match = re.match(r"([A-Za-z0-9][\w.-]*)==(\S+)", block)
        if match:
            name = normalise(match.group(1))
            pins[name] = Pin(name, match.group(2), block)
    return pins


def names_in(path: Path) -> list[str]:
    """Return the package names of a plain list (``cpu-torch-cuda.in``)."""
    lines = (line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [normalise(line) for line in lines if line]


def subset(pins: Mapping[str, Pin], names: Iterable[str]) -> str:
    """Return a lock of only these packages.

    Raises:
        KeyError: a name is not in the lock.
    """
    return "".join(pins[name].text for name in names)


def make_locks(root: Path, uv: Path, runner: Runner) -> None:
    """Resolve once for each Python and write every lock.

    The CUDA lock is the resolve. The CPU lock is the same resolve less ``cpu-excludes.txt``, held to the CUDA
    lock's versions by using it as constraints.

    Args:
        root: The checkout.
        uv: The pinned installer.
        runner: Runs it.
    """
    locks = root / "locks"
    common = [str(uv), "pip", "compile", "--quiet", "--upgrade", "--generate-hashes", "--no-build"]
    common += ["--no-emit-index-url", "--no-emit-find-links", "--no-header", "--no-config"]
    common += ["--exclude-newer", EXCLUDE_NEWER, "--python-platform", PLATFORM]
    for python in PYTHONS:
        version = ["--python-version", python]
        cuda, cpu = f"locks/cuda13-{tag(python)}.txt", f"locks/cpu-{tag(python)}.txt"
        kit = ["--extra", "test", "pyproject.toml", "locks/engine.in"]
        took = runner.run(f"resolving {cuda}", [*common, *version, *kit, "locks/cuda13.in", "-o", cuda])
        say(f"{cuda}: {len(read_lock(root / cuda))} packages, {took:.1f} s")
        less = ["locks/cpu.in", "--excludes", "locks/cpu-excludes.txt", "-c", cuda]
        took = runner.run(f"resolving {cpu}", [*common, *version, *kit, *less, "-o", cpu])
        say(f"{cpu}: {len(read_lock(root / cpu))} packages, {took:.1f} s")
        libraries = locks / f"cpu-torch-cuda-{tag(python)}.txt"
        libraries.write_text(subset(read_lock(root / cuda), names_in(locks / "cpu-torch-cuda.in")), encoding="utf-8")
        for path in (root / cuda, root / cpu, libraries):
            path.write_text(HEADER + path.read_text(encoding="utf-8"), encoding="utf-8")
    runner.run("resolving uv", [*common, "--python-version", PYTHONS[0], "locks/bootstrap.in", "-o", "locks/bootstrap.txt"])
    path = locks / "bootstrap.txt"
    path.write_text(HEADER + path.read_text(encoding="utf-8"), encoding="utf-8")
