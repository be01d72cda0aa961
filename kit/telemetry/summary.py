"""Figures of a stretch of telemetry: power, energy, clocks, load. Pure.

Energy is the integral of power over time (trapezoids between samples), or the difference of the GPU's own energy
counter where it has one. Nothing is made up for a gap: its seconds are told beside the joules, and the counter's
difference holds over it because the GPU went on counting.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise

from pydantic import BaseModel, ConfigDict, Field

from kit.nvml import EVENT_REASONS
from kit.telemetry.records import GAP_FACTOR, GpuSample, TelemetrySample


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class GpuSummary(_Frozen):
    """One GPU over a stretch; None where nothing was told."""

    index: int
    power_w: float | None = Field(description="mean")
    sm_mhz: float | None = Field(description="mean")
    sm_mhz_min: int | None
    temperature_c: int | None = Field(description="highest")
    utilisation: float | None = Field(description="mean share")
    memory_used_mib: int | None = Field(description="most")
    pcie_mb_s: float | None = Field(description="mean of both directions together")
    joules: float | None
    reasons: dict[str, float] = Field(description="share of the samples, by clock event reason")
    foreign_pids: list[int] = Field(description="processes that are known not to be the kit's")
    foreign_mib: int = Field(default=0, description="most memory that they held at one time")


class Summary(_Frozen):
    """A stretch of telemetry."""

    seconds: float
    samples: int
    gap_s: float = Field(description="seconds in gaps; the figures say nothing of them")
    cpu: float | None = Field(description="mean share of the processors busy")
    cpu_others: float | None = Field(description="mean share busy for neither kit nor server")
    steal: float | None = Field(description="mean share")
    cpu_mhz: float | None = Field(description="mean")
    server_rss_mib: float | None = Field(description="most")
    gpus: list[GpuSummary]
    joules: float | None = Field(
        description="of all GPUs; of the processors' packages where no GPU is used"
    )
    joules_of: str = Field(default="", description="what the joules are of, and how they were read")
    joules_gap_s: float = Field(
        default=0.0,
        description="seconds whose energy is not in the joules: 0 where counters ran on",
    )
    tokens: int | None = None
    joules_per_token: float | None = None

    @property
    def complete(self) -> bool:
        """Return whether the stretch has no gap."""
        return self.gap_s == 0 and self.samples > 0


def window(samples: Sequence[TelemetrySample], start: float, end: float) -> list[TelemetrySample]:
    """Return the samples of a stretch of Unix time with one more on each side, so that it is covered to its ends."""
    times = [s.t for s in samples]
    first = bisect_left(times, start)
    last = bisect_right(times, end)
    return list(samples[max(0, first - 1) : last + 1])


def _mean(values: Sequence[float | None]) -> float | None:
    have = [v for v in values if v is not None]
    return sum(have) / len(have) if have else None


def _most(values: Sequence[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)


def _between(a: tuple[float, float], b: tuple[float, float], t: float) -> float:
    """Return the value at ``t`` on the line through two points (time, value)."""
    return a[1] if b[0] == a[0] else a[1] + (b[1] - a[1]) * (t - a[0]) / (b[0] - a[0])


def integrate(
    points: Sequence[tuple[float, float]], start: float, end: float, longest: float
) -> tuple[float, float]:
    """Return (integral, seconds covered) of a curve given by (time, value) points between ``start`` and ``end``.

    Pieces between two points further apart than ``longest`` are left out of both.
    """
    total = covered = 0.0
    for a, b in pairwise(points):
        low, high = max(a[0], start), min(b[0], end)
        if high <= low or b[0] - a[0] > longest:
            continue
        total += (_between(a, b, low) + _between(a, b, high)) / 2 * (high - low)
        covered += high - low
    return total, covered


def counter_growth(points: Sequence[tuple[float, float]], start: float, end: float) -> float | None:
    """Return by how much a counter given by (time, count) points grew from ``start`` to ``end``.

    Between points it is taken to grow evenly. None if the points do not reach over both ends or the counter fell (it
    was set back).
    """
    if len(points) < 2 or points[0][0] > start or points[-1][0] < end:
        return None
    if any(b[1] < a[1] for a, b in pairwise(points)):
        return None

    def at(t: float) -> float:
        i = max(1, min(len(points) - 1, bisect_left([p[0] for p in points], t)))
        return _between(points[i - 1], points[i], t)

    return at(end) - at(start)


def gap_seconds(times: Sequence[float], start: float, end: float, longest: float) -> float:
    """Return the seconds from ``start`` to ``end`` that lie in gaps, before the first time or after the last."""
    if not times:
        return end - start
    gaps = [(a, b) for a, b in pairwise(times) if b - a > longest]
    gaps += [(start, times[0]), (times[-1], end)]
    return sum(max(0.0, min(b, end) - max(a, start)) for a, b in gaps)


def _points(
    samples: Sequence[TelemetrySample], read: Callable[[TelemetrySample], float | None]
) -> list[tuple[float, float]]:
    return [(s.t, value) for s in samples if (value := read(s)) is not None]


def _gpu_of(sample: TelemetrySample, index: int) -> GpuSample | None:
    return next((g for g in sample.gpus if g.index == index), None)


def _energy(
    samples: Sequence[TelemetrySample], index: int, start: float, end: float, longest: float
) -> tuple[float | None, bool, float]:
    """Return the joules of one GPU, whether they are the counter's, and the seconds that they leave out."""

    def counter(sample: TelemetrySample) -> float | None:
        gpu = _gpu_of(sample, index)
        return None if gpu is None or gpu.energy_mj is None else gpu.energy_mj / 1000

    def power(sample: TelemetrySample) -> float | None:
        gpu = _gpu_of(sample, index)
        return None if gpu is None else gpu.power_w

    counted = counter_growth(_points(samples, counter), start, end)
    # A counter that stands still under a measured power is one that this card does not keep.
    if counted:
        return counted, True, 0.0
    joules, covered = integrate(_points(samples, power), start, end, longest)
    return (joules if covered else None), False, max(0.0, end - start - covered)


def _gpu_summary(
    samples: Sequence[TelemetrySample],
    inside: Sequence[TelemetrySample],
    index: int,
    joules: float | None,
) -> GpuSummary:
    seen = [g for s in inside if (g := _gpu_of(s, index)) is not None]
    masks = [g.reasons for g in seen if g.reasons is not None]
    traffic = [
        g.pcie_tx_mb_s + g.pcie_rx_mb_s
        for g in seen
        if g.pcie_tx_mb_s is not None and g.pcie_rx_mb_s is not None
    ]
    clocks = [g.sm_mhz for g in seen if g.sm_mhz is not None]
    heat = _most([g.temperature_c for g in seen])
    used = _most([g.memory_used_mib for g in seen])
    around = [g for s in samples if (g := _gpu_of(s, index)) is not None]
    return GpuSummary(
        index=index,
        power_w=_mean([g.power_w for g in seen]),
        sm_mhz=_mean(clocks),
        sm_mhz_min=min(clocks, default=None),
        temperature_c=None if heat is None else int(heat),
        utilisation=_mean([g.utilisation for g in seen]),
        memory_used_mib=None if used is None else int(used),
        pcie_mb_s=_mean(traffic),
        joules=joules,
        reasons={
            word: share
            for bit, word in EVENT_REASONS.items()
            if (share := sum(bool(m & bit) for m in masks) / len(masks) if masks else 0.0)
        },
        foreign_pids=sorted({p.pid for g in around for p in g.processes if p.ours is False}),
        foreign_mib=max(
            (sum(p.memory_mib or 0 for p in g.processes if p.ours is False) for g in around),
            default=0,
        ),
    )


def summarize(
    samples: Sequence[TelemetrySample],
    start: float,
    end: float,
    *,
    interval_s: float = 1.0,
    tokens: int | None = None,
) -> Summary:
    """Return the figures of the stretch from ``start`` to ``end`` (Unix time, s).

    Args:
        samples: All of a run, in order of time.
        start: Beginning of the stretch.
        end: Its end, later than ``start``.
        interval_s: The interval of the samples, from the header.
        tokens: Output tokens made in it, for joules per token.
    """
    near = window(samples, start, end)
    # A share belongs to the time before its sample, so the one after the end is left out.
    inside = [s for s in near if start < s.t <= end] or near[-1:]
    longest = GAP_FACTOR * interval_s
    indices = sorted({g.index for s in near for g in s.gpus})
    energies = {i: _energy(near, i, start, end, longest) for i in indices}
    gpus = [_gpu_summary(near, inside, i, energies[i][0]) for i in indices]
    joules, source, left_out = None, "", 0.0
    if gpus and all(g.joules is not None for g in gpus):
        joules = sum(g.joules or 0.0 for g in gpus)
        counted = all(by_counter for _, by_counter, _ in energies.values())
        left_out = max(missing for _, _, missing in energies.values())
        source = f"{len(gpus)} GPUs, {'energy counter' if counted else 'power × time'}"
    elif not gpus:
        packages = counter_growth(
            _points(near, lambda s: None if s.cpu_energy_uj is None else s.cpu_energy_uj / 1e6),
            start,
            end,
        )
        if packages is not None:
            joules, source = packages, "processor packages, RAPL"
    both = [(s.cpu, s.cpu_ours) for s in inside if s.cpu is not None and s.cpu_ours is not None]
    return Summary(
        seconds=end - start,
        samples=sum(start < s.t <= end for s in near),
        gap_s=gap_seconds([s.t for s in near], start, end, longest),
        cpu=_mean([s.cpu for s in inside]),
        cpu_others=max(0.0, sum(a - b for a, b in both) / len(both)) if both else None,
        steal=_mean([s.steal for s in inside]),
        cpu_mhz=_mean([s.cpu_mhz for s in inside]),
        server_rss_mib=_most([s.server_rss_mib for s in inside]),
        gpus=gpus,
        joules=joules,
        joules_of=source,
        joules_gap_s=left_out,
        tokens=tokens,
        joules_per_token=joules / tokens if joules is not None and tokens else None,
    )
