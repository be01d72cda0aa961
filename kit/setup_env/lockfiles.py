"""The lock files: reading them, taking a subset, and making them anew (``make lock``)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kit.setup_env.console import Runner, say

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

# Everything published until 2026-06-01. Later releases of what the engine leaves unpinned break it.
# Said as an instant, since a bare date would depend on the time zone of the host.
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

    The CUDA lock is the resolve. The CPU lock is the same resolve less ``cpu-excludes.txt``, held
    to the CUDA lock's versions by using it as constraints.

    Args:
        root: The checkout.
        uv: The pinned installer.
        runner: Runs it.
    """
    common = [str(uv), "pip", "compile", "--quiet", "--upgrade", "--generate-hashes", "--no-build"]
    common += ["--no-emit-index-url", "--no-emit-find-links", "--no-header"]
    common += ["--exclude-newer", EXCLUDE_NEWER, "--python-platform", PLATFORM]

    def resolve(name: str, python: str, *sources: str) -> Path:
        output = f"locks/{name}.txt"
        command = [*common, "--python-version", python, *sources, "-o", output]
        took = runner.run(f"resolving {output}", command)
        path = root / output
        path.write_text(HEADER + path.read_text(encoding="utf-8"), encoding="utf-8")
        say(f"{output}: {len(read_lock(path))} packages, {took:.1f} s")
        return path

    kit = ("--extra", "test", "pyproject.toml", "locks/engine.in")
    for python in PYTHONS:
        which = tag(python)
        cuda = resolve(f"cuda13-{which}", python, *kit, "locks/cuda13.in")
        less = ("--excludes", "locks/cpu-excludes.txt", "-c", f"locks/{cuda.name}")
        resolve(f"cpu-{which}", python, *kit, "locks/cpu.in", *less)
        libraries = subset(read_lock(cuda), names_in(root / "locks/cpu-torch-cuda.in"))
        path = root / f"locks/cpu-torch-cuda-{which}.txt"
        path.write_text(HEADER + libraries, encoding="utf-8")
    resolve("bootstrap", PYTHONS[0], "locks/bootstrap.in")
