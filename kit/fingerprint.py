"""What machine and software a run was made on: described fields, a stable hash, tiers of likeness.

No serial numbers, host names or user names are in it, so that it can be published.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import itertools
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any

import orjson
import psutil
from pydantic import BaseModel, ConfigDict, Field

from kit import nvml
from kit.nvml import maybe
from kit.units import GIB, MIB

SCHEMA = 1


class Tier(IntEnum):
    """How alike two machines are; levels are comparable from SAME_SKU_AND_TOPOLOGY up."""

    OTHER = 0
    SAME_SKU = 1
    SAME_SKU_AND_TOPOLOGY = 2
    SAME_MACHINE_CLASS = 3


TIER_TEXT = {
    Tier.OTHER: "another kind of machine",
    Tier.SAME_SKU: "the same processor or GPU model, in another number or wiring",
    Tier.SAME_SKU_AND_TOPOLOGY: "the same GPU model, number and wiring, with other software or host",
    Tier.SAME_MACHINE_CLASS: "the same machine class and software",
}


class Gpu(BaseModel):
    """One GPU, as NVML describes it."""

    model_config = ConfigDict(frozen=True)

    name: str
    memory_mib: int = Field(description="total memory, MiB")
    sm: str | None = Field(default=None, description="compute capability, such as 9.0")
    power_limit_w: float | None = Field(default=None, description="enforced power limit, W")
    max_sm_mhz: int | None = Field(default=None, description="highest SM clock, MHz")
    max_memory_mhz: int | None = Field(default=None, description="highest memory clock, MHz")
    pcie_generation_max: int | None = Field(default=None, description="highest PCIe generation")
    pcie_width_max: int | None = Field(default=None, description="highest PCIe width, lanes")
    ecc: bool | None = Field(default=None, description="whether ECC is on: it costs bandwidth")


class Fingerprint(BaseModel):
    """A machine and its software. :func:`must_match` names the fields that must match to compare numbers."""

    model_config = ConfigDict(frozen=True)

    schema_version: int = SCHEMA
    cpu_model: str = Field(description="processor name")
    cpu_cores: int = Field(description="logical processors that this process may use")
    cpu_flags: list[str] = Field(description="vector extensions that decide CPU kernels")
    memory_gib: int = Field(description="memory, GiB, rounded")
    memory_limit_gib: float | None = Field(description="limit of the container, GiB; None without")
    kernel: str = Field(description="kernel release, major and minor")
    os: str = Field(description="distribution and version")
    virtualised: bool = Field(description="whether a hypervisor is under this host")
    python: str = Field(description="Python version")
    packages: dict[str, str] = Field(description="versions of what decides speed")
    driver: str | None = Field(description="NVIDIA driver version")
    gpus: list[Gpu] = Field(description="GPUs in NVML's order")
    topology: list[str] = Field(description="link of each pair of GPUs: NVLINK, PIX, PHB, SYS …")
    p2p: bool | None = Field(
        default=None,
        description="whether every GPU may read and write every other's memory; None with fewer than two",
    )

    @property
    def hash(self) -> str:
        """Return 16 hex digits that change with any field."""
        fields = self.model_dump(mode="json")
        # Younger than the first run folders: where it is not known the hash is theirs.
        if fields["p2p"] is None:
            del fields["p2p"]
        data = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(data).hexdigest()[:16]


PACKAGES = ("sglang", "torch", "transformers", "triton", "sglang-kernel", "flashinfer-python")
_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16")


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""


def _cpu() -> tuple[str, list[str]]:
    text = _read("/proc/cpuinfo")
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.M)
    have = set(flags.group(1).split()) if flags else set()
    model = name.group(1).strip() if name else platform.processor() or platform.machine()
    return model, [f for f in _FLAGS if f in have]


def _memory_limit_gib() -> float | None:
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _read(path).strip()
        if text.isdigit() and int(text) < psutil.virtual_memory().total:
            return round(int(text) / GIB, 1)
    return None


def _os() -> str:
    try:
        info = platform.freedesktop_os_release()
    except OSError:
        return platform.system()
    return f"{info.get('ID', 'linux')} {info.get('VERSION_ID', '')}".strip()


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _gpu(library: nvml.Nvml, gpu: nvml.Gpu) -> Gpu:
    capability = maybe(library, "DeviceGetCudaComputeCapability", gpu)
    limit = maybe(library, "DeviceGetEnforcedPowerLimit", gpu)
    ecc = maybe(library, "DeviceGetEccMode", gpu)
    memory = maybe(library, "DeviceGetMemoryInfo", gpu)
    return Gpu(
        name=library.ask("DeviceGetName", gpu),
        memory_mib=memory["total"] // MIB if memory else 0,
        sm=f"{capability[0]}.{capability[1]}" if capability else None,
        power_limit_w=limit / 1000 if limit else None,
        max_sm_mhz=maybe(library, "DeviceGetMaxClockInfo", gpu, nvml.CLOCK_SM),
        max_memory_mhz=maybe(library, "DeviceGetMaxClockInfo", gpu, nvml.CLOCK_MEMORY),
        pcie_generation_max=maybe(library, "DeviceGetMaxPcieLinkGeneration", gpu),
        pcie_width_max=maybe(library, "DeviceGetMaxPcieLinkWidth", gpu),
        ecc=bool(ecc[0]) if ecc else None,
    )


def _topology(library: nvml.Nvml, gpus: list[nvml.Gpu]) -> list[str]:
    return [
        f"{a.index}-{b.index} {nvml.link_kind(library, a, b)}"
        for a, b in itertools.combinations(gpus, 2)
    ]


def _p2p(library: nvml.Nvml, gpus: list[nvml.Gpu]) -> bool | None:
    told = [status for *_, status in nvml.peer_access(library, gpus)]
    if not told or None in told:
        return None
    return not any(told)


@contextmanager
def _library() -> Iterator[tuple[nvml.Nvml | None, list[nvml.Gpu]]]:
    """Yield NVML and every GPU that it sees; None and no GPU where there is no driver."""
    with contextlib.ExitStack() as stack:
        try:
            library = stack.enter_context(nvml.opened())
        except nvml.NvmlError:
            yield None, []
            return
        yield library, [nvml.Gpu(i) for i in range(library.ask("DeviceGetCount"))]


def collect() -> Fingerprint:
    """Return the fingerprint of this host; works without a driver."""
    model, flags = _cpu()
    driver, gpus, topology, p2p = None, [], [], None
    with _library() as (library, found):
        if library is not None:
            driver = maybe(library, "SystemGetDriverVersion") or None
            gpus = [_gpu(library, gpu) for gpu in found]
            topology = _topology(library, found)
            p2p = _p2p(library, found)
    return Fingerprint(
        cpu_model=model,
        cpu_cores=len(os.sched_getaffinity(0)),
        cpu_flags=flags,
        memory_gib=round(psutil.virtual_memory().total / GIB),
        memory_limit_gib=_memory_limit_gib(),
        kernel=".".join(platform.release().split(".")[:2]),
        os=_os(),
        virtualised="hypervisor" in _read("/proc/cpuinfo"),
        python=platform.python_version(),
        packages=_packages(),
        driver=driver,
        gpus=gpus,
        topology=topology,
        p2p=p2p,
    )


def gpu_names() -> list[str]:
    """Return the names of the GPUs that a server could use, empty where there is no driver."""
    with _library() as (library, found):
        return [library.ask("DeviceGetName", gpu) for gpu in found] if library else []


# What makes the silicon: with GPUs the GPUs alone, on a CPU host the processor.
_GPU_SKU = ("name", "memory_mib", "sm", "power_limit_w", "max_sm_mhz", "max_memory_mhz")
_CPU_SKU = ("cpu_model", "cpu_cores", "cpu_flags")
# How a card is fitted; one of the two machines may not know it.
_FITTED = ("pcie_generation_max", "pcie_width_max", "ecc")


def must_match(fp: Fingerprint) -> tuple[str, ...]:
    """Return the fields that must match for numbers to be comparable: the silicon and its wiring. Pure."""
    return ("gpus", "topology", "p2p") if fp.gpus else _CPU_SKU


def _skus(fp: Fingerprint) -> list[tuple[Any, ...]]:
    if fp.gpus:
        return sorted({tuple(getattr(g, f) for f in _GPU_SKU) for g in fp.gpus}, key=str)
    return [tuple(str(getattr(fp, f)) for f in _CPU_SKU)]


def _differ_where_known(a: Any, b: Any) -> bool:
    return a is not None and b is not None and bool(a != b)


def _fitted_otherwise(a: Fingerprint, b: Fingerprint) -> bool:
    """Return whether as many cards of the same model are fitted in another way: lanes, ECC, peer access."""
    return _differ_where_known(a.p2p, b.p2p) or any(
        _differ_where_known(getattr(one, name), getattr(two, name))
        for one, two in zip(a.gpus, b.gpus, strict=True)
        for name in _FITTED
    )


def compare(a: Fingerprint, b: Fingerprint) -> Tier:
    """Return how alike two machines are. Pure."""
    if bool(a.gpus) != bool(b.gpus) or _skus(a) != _skus(b):
        return Tier.OTHER
    if len(a.gpus) != len(b.gpus) or a.topology != b.topology:
        return Tier.SAME_SKU
    if _fitted_otherwise(a, b):
        return Tier.SAME_SKU
    same_software = a.packages == b.packages and a.driver == b.driver
    same_host = a.cpu_model == b.cpu_model and a.cpu_cores == b.cpu_cores
    if same_software and same_host:
        return Tier.SAME_MACHINE_CLASS
    return Tier.SAME_SKU_AND_TOPOLOGY


def differences(a: Fingerprint, b: Fingerprint) -> list[str]:
    """Return the fields that differ, a line each, with what the field is."""
    lines = []
    for name, field in Fingerprint.model_fields.items():
        old, new = getattr(a, name), getattr(b, name)
        if old != new:
            why = f"  ({field.description})" if field.description else ""
            lines.append(f"{name}: {old} → {new}{why}")
    return lines
