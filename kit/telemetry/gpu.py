"""One sample of one GPU through NVML."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kit.nvml import (
    CLOCK_MEMORY,
    CLOCK_SM,
    PCIE_RX_BYTES,
    PCIE_TX_BYTES,
    TEMPERATURE_GPU,
    Gpu,
    Nvml,
    current_event_reasons,
    gpu_processes,
    maybe,
)
from kit.telemetry.records import GpuProcess, GpuSample
from kit.units import MIB


def _scaled(value: Any, factor: float) -> float | None:
    return None if value is None else value * factor


def sample_gpu(nvml: Nvml, gpu: Gpu, ours: Callable[[int], bool | None]) -> GpuSample:
    """Return what a GPU does now; what it does not tell is None.

    Args:
        nvml: Who answers.
        gpu: Which GPU.
        ours: Whether a pid was started by the kit; None where that cannot be known.
    """
    use = maybe(nvml, "DeviceGetUtilizationRates", gpu) or {}
    memory = maybe(nvml, "DeviceGetMemoryInfo", gpu)
    energy = maybe(nvml, "DeviceGetTotalEnergyConsumption", gpu)
    # Throughput is in KiB/s over the last 20 ms: a look at the level, no sum.
    kib = 1024 / 1e6
    return GpuSample(
        index=gpu.index,
        power_w=_scaled(maybe(nvml, "DeviceGetPowerUsage", gpu), 1e-3),
        energy_mj=None if energy is None else int(energy),
        sm_mhz=maybe(nvml, "DeviceGetClockInfo", gpu, CLOCK_SM),
        memory_mhz=maybe(nvml, "DeviceGetClockInfo", gpu, CLOCK_MEMORY),
        temperature_c=maybe(nvml, "DeviceGetTemperature", gpu, TEMPERATURE_GPU),
        utilisation=_scaled(use.get("gpu"), 0.01),
        memory_utilisation=_scaled(use.get("memory"), 0.01),
        memory_used_mib=int(memory["used"]) // MIB if memory else None,
        reasons=current_event_reasons(nvml, gpu),
        pcie_tx_mb_s=_scaled(maybe(nvml, "DeviceGetPcieThroughput", gpu, PCIE_TX_BYTES), kib),
        pcie_rx_mb_s=_scaled(maybe(nvml, "DeviceGetPcieThroughput", gpu, PCIE_RX_BYTES), kib),
        processes=[
            GpuProcess(
                pid=entry["pid"],
                memory_mib=used // MIB if (used := entry["usedGpuMemory"]) else None,
                ours=ours(entry["pid"]),
            )
            for entry in gpu_processes(nvml, gpu) or []
        ],
    )
