"""The lines of ``telemetry.jsonl``. Absent values are None: nothing is invented for what a host does not tell."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

SCHEMA = 1
GAP_FACTOR = 2.5
"""A stretch between two samples longer than this many intervals is a gap."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class TelemetryHeader(_Record):
    """The first line: how it was sampled, and what this host does not tell."""

    kind: Literal["header"] = "header"
    schema_version: int = SCHEMA
    t: float = Field(description="Unix time of the start, s")
    interval_s: float
    gpus: list[str] = Field(default_factory=list, description="names, in NVML's order")
    cpus: int = Field(description="logical processors whose time is shared out, of the whole host")
    unavailable: dict[str, str] = Field(
        default_factory=dict, description="field: why it is None in every sample"
    )


class GpuProcess(_Record):
    """A process that holds memory of a GPU."""

    pid: int
    memory_mib: int | None = None
    ours: bool | None = Field(
        default=None, description="started by the kit; None where pids are not comparable"
    )


class GpuSample(_Record):
    """One GPU at one moment."""

    index: int
    power_w: float | None = None
    energy_mj: int | None = Field(default=None, description="the GPU's own energy counter, mJ")
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    temperature_c: int | None = None
    utilisation: float | None = Field(default=None, description="share of the time a kernel ran")
    memory_utilisation: float | None = Field(
        default=None, description="share of the time memory was read or written"
    )
    memory_used_mib: int | None = None
    reasons: int | None = Field(
        default=None, description="mask of clock event reasons, kit.nvml.EVENT_REASONS"
    )
    pcie_tx_mb_s: float | None = None
    pcie_rx_mb_s: float | None = None
    processes: list[GpuProcess] = Field(default_factory=list)


class TelemetrySample(_Record):
    """One moment. Shares are of the time since the sample before, 0 to 1, over all processors of the host."""

    kind: Literal["sample"] = "sample"
    t: float = Field(description="Unix time, s: the clock of the level records")
    gap_s: float = Field(
        default=0.0, description="seconds without a sample before this one, beyond the interval"
    )
    cpu: float | None = Field(default=None, description="share busy (user, system, interrupts)")
    cpu_ours: float | None = Field(
        default=None, description="share busy for the kit and its server; None if not visible"
    )
    steal: float | None = Field(
        default=None, description="share that the hypervisor gave to others while work waited"
    )
    cpu_mhz: float | None = Field(default=None, description="mean clock of the processors")
    cpu_energy_uj: int | None = Field(
        default=None, description="the packages' energy counters (RAPL), summed, µJ"
    )
    server_rss_mib: float | None = Field(
        default=None,
        description="resident memory of the server's processes; shared pages count in each",
    )
    gpus: list[GpuSample] = Field(default_factory=list)


TelemetryLine = Annotated[TelemetryHeader | TelemetrySample, Field(discriminator="kind")]
line_adapter: TypeAdapter[TelemetryLine] = TypeAdapter(TelemetryLine)
