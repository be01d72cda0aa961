"""The client's measurement of itself: CPU share, event-loop lag, schedule delay, pauses of the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kit.load.clock import Ticker
from kit.load.model import ClientHealth

TICK_NS = 5_000_000
# One process beyond half a core has no reserve for a burst: more workers are needed.
MOST_CPU_SHARE = 0.5
# A loop that comes late by this much of a request's latency bends throughput and times by as much.
MOST_BIAS = 0.01
# ... and below these nobody would see it.
LEAST_LAG_MS = 1.0
MOST_LAG_MS = 20.0
MOST_OPEN_DELAY_MS = 10.0
FEWEST_TICKS = 100


@dataclass(slots=True)
class Vitals:
    """Raw self-measurement of one process; several add up to a :class:`ClientHealth`."""

    cpu_s: float = 0.0
    lags_ms: list[float] = field(default_factory=list)
    delays_ms: list[float] = field(default_factory=list)
    gc_pauses_ms: list[float] = field(default_factory=list)
    events: int = 0


class Probe:
    """Measures this process while its event loop runs a level."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.vitals = Vitals()
        self._ticker = Ticker(loop, TICK_NS, self._tick)
        self._cpu = time.process_time()
        self._gc_began = 0
        gc.callbacks.append(self._collecting)

    def _tick(self, due_ns: int) -> None:
        self.vitals.lags_ms.append((time.perf_counter_ns() - due_ns) * 1e-6)

    def _collecting(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._gc_began = time.perf_counter_ns()
        elif self._gc_began:
            self.vitals.gc_pauses_ms.append((time.perf_counter_ns() - self._gc_began) * 1e-6)

    def stop(self) -> Vitals:
        """Stop and return what was measured; once only."""
        self.vitals.cpu_s = time.process_time() - self._cpu
        self._ticker.close()
        gc.callbacks.remove(self._collecting)
        return self.vitals


def _p99(values: Sequence[float]) -> float:
    return float(np.percentile(np.asarray(values), 99)) if values else 0.0


def bound_reasons(
    cpu_s: float,
    wall_s: float,
    lags_ms: Sequence[float],
    *,
    latency_s: float | None = None,
    open_delays_ms: Sequence[float] = (),
) -> tuple[str, ...]:
    """Return the reasons why the client may have been the bottleneck; none if it was not. Pure.

    Args:
        cpu_s: CPU seconds of the busiest process.
        wall_s: Seconds of the level.
        lags_ms: How late the event loop came, a sample every tick.
        latency_s: Mean latency of a request: a lag is judged against it, where it is known.
        open_delays_ms: How late an open loop sent.
    """
    share = cpu_s / wall_s if wall_s > 0 else 0.0
    reasons = []
    # Below a second a share means nothing: starting up alone is a few percent of it.
    if wall_s >= 1 and share > MOST_CPU_SHARE:
        reasons.append(f"it used {share:.0%} of a core (at most {MOST_CPU_SHARE:.0%})")
    if len(lags_ms) >= FEWEST_TICKS:
        mean, p99 = float(np.mean(lags_ms)), _p99(lags_ms)
        bias = mean * 1e-3 / latency_s if latency_s else 0.0
        if mean > LEAST_LAG_MS and bias > MOST_BIAS:
            reasons.append(
                f"its event loop came {mean:.1f} ms late on average, {bias:.1%} of a request"
                f" (at most {MOST_BIAS:.0%})"
            )
        elif p99 > MOST_LAG_MS and (latency_s is None or p99 * 1e-3 > MOST_BIAS * latency_s * 10):
            reasons.append(
                f"its event loop came {p99:.1f} ms late (p99; at most {MOST_LAG_MS:g} ms"
                f" or {MOST_BIAS * 10:.0%} of a request)"
            )
    if open_delays_ms:
        median = float(np.median(open_delays_ms))
        if median > MOST_OPEN_DELAY_MS:
            reasons.append(
                f"it sent {median:.1f} ms late (median; at most {MOST_OPEN_DELAY_MS:g} ms)"
            )
    return tuple(reasons)


def health_of(
    vitals: Sequence[Vitals], wall_s: float, latency_s: float | None, open_loop: bool
) -> ClientHealth:
    """Return the health of a client made of one or more processes. Pure.

    Args:
        vitals: One for each process.
        wall_s: Seconds of the level.
        latency_s: Mean latency of a request, None if none was answered.
        open_loop: Delays are against a schedule, not against the end of the request before.
    """
    worst = max(vitals, key=lambda v: v.cpu_s)
    latest = max(vitals, key=lambda v: _p99(v.lags_ms))
    delays = [d for v in vitals for d in v.delays_ms]
    pauses = [p for v in vitals for p in v.gc_pauses_ms]
    events = sum(v.events for v in vitals)
    reasons = bound_reasons(
        worst.cpu_s,
        wall_s,
        latest.lags_ms,
        latency_s=latency_s,
        open_delays_ms=delays if open_loop else (),
    )
    return ClientHealth(
        cpu_share=worst.cpu_s / wall_s if wall_s > 0 else 0.0,
        loop_lag_p99_ms=_p99(latest.lags_ms),
        schedule_delay_p99_ms=_p99(delays),
        client_bound=bool(reasons),
        bound_reason=" and ".join(reasons),
        loop_lag_mean_ms=float(np.mean(latest.lags_ms)) if latest.lags_ms else 0.0,
        gc_pause_max_ms=max(pauses, default=0.0),
        gc_pause_total_ms=sum(pauses),
        events=events,
        cpu_us_per_event=sum(v.cpu_s for v in vitals) * 1e6 / events if events else None,
        workers=len(vitals),
    )
