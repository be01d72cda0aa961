"""Which lock fits this host: CUDA 13 for an NVIDIA GPU with a new enough driver, else the CPU's."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

# CUDA 13 runs on drivers of the 580 branch and later:
# https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
MIN_DRIVER = 580
# The wheels of SGLang and of its kernels are built against glibc 2.34 (tag manylinux_2_34).
MIN_GLIBC = (2, 34)


@dataclass(frozen=True)
class Choice:
    """A kind of lock and the reason for it.

    Attributes:
        kind: ``cpu`` or ``cuda13``, the prefix of the lock's file name.
        reason: One clause for the reader.
    """

    kind: str
    reason: str


@dataclass(frozen=True)
class Gpu:
    """What the host says about an NVIDIA GPU.

    Attributes:
        present: A GPU's control device is there, or ``nvidia-smi`` lists one.
        driver: Major version of the driver, None where it cannot be read.
    """

    present: bool
    driver: int | None = None


def driver_major(text: str) -> int | None:
    """Return the major driver version in the driver's own text or ``nvidia-smi``'s, or None."""
    match = re.search(r"\b(\d{3,4})\.\d+", text)
    return int(match.group(1)) if match else None


def probe_gpu(root: Path = Path("/")) -> Gpu:
    """Look for an NVIDIA GPU.

    The device node and the driver's file come first because they cost nothing; ``nvidia-smi`` can
    take seconds and is asked only where there is no node (as under WSL).

    Args:
        root: Where ``/dev`` and ``/proc`` lie.
    """
    if (root / "dev/nvidiactl").exists():
        try:
            return Gpu(True, driver_major((root / "proc/driver/nvidia/version").read_text()))
        except OSError:
            return Gpu(True)
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Gpu(False)
    query = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return Gpu(False)
    if done.returncode != 0 or not done.stdout.strip():
        return Gpu(False)
    return Gpu(True, driver_major(done.stdout))


def choose(environ: Mapping[str, str], gpu: Gpu) -> Choice:
    """Choose the lock.

    Args:
        environ: ``KIT_LOCK`` (``cpu`` or ``cuda``) overrides what was found.
        gpu: What :func:`probe_gpu` found.

    Raises:
        UserError: ``KIT_LOCK`` has another value.
    """
    asked = environ.get("KIT_LOCK", "")
    if asked in ("cuda", "cuda13"):
        return Choice("cuda13", "KIT_LOCK asks for it")
    if asked == "cpu":
        return Choice("cpu", "KIT_LOCK asks for it")
    if asked:
        raise UserError(f"KIT_LOCK={asked} is not a lock.", "Use KIT_LOCK=cpu or KIT_LOCK=cuda.")
    if not gpu.present:
        return Choice("cpu", "no NVIDIA GPU found")
    if gpu.driver is not None and gpu.driver < MIN_DRIVER:
        old = f"NVIDIA driver {gpu.driver} is older than CUDA 13 needs ({MIN_DRIVER})"
        return Choice("cpu", f"{old}; KIT_LOCK=cuda overrides")
    return Choice("cuda13", "NVIDIA GPU found")


def check_host(system: str, machine: str, libc: tuple[str, str]) -> None:
    """Refuse a host that no lock fits.

    Args:
        system: ``platform.system()``.
        machine: ``platform.machine()``.
        libc: ``platform.libc_ver()``.

    Raises:
        UserError: not Linux on x86-64 with glibc 2.34 or later.
    """
    if system != "Linux" or machine not in ("x86_64", "AMD64"):
        raise UserError(
            f"The locks are for Linux on x86-64, and this is {system} on {machine}.",
            "Run the kit on such a host, or in a container or virtual machine of that kind.",
        )
    name, version = libc
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if name != "glibc" or numbers < MIN_GLIBC:
        have = f"glibc {version}" if name == "glibc" else "another C library"
        raise UserError(
            f"SGLang's packages need glibc 2.34 or later, and this host has {have}.",
            "Use Debian 12, Ubuntu 22.04 or later, or the kit's container image.",
        )
