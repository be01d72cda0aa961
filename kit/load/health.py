"""The client's measurement of itself: CPU share and event-loop lag."""

from __future__ import annotations

import asyncio
import time

import numpy as np

from kit.load.model import ClientHealth

TICK_S = 0.01
# One process beyond half a core, or a loop that comes late, means that the client's own time is in the numbers.
MOST_CPU_SHARE = 0.5
MOST_LAG_MS = 20.0


class LagProbe:
    """Sleeps in short ticks and notes by how much it wakes too late."""

    def __init__(self) -> None:
        self.lags_ms: list[float] = []

    async def watch(self) -> None:
        """Run until cancelled."""
        while True:
            wanted = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            self.lags_ms.append((time.perf_counter() - wanted) * 1e3)


def judge_client(cpu_s: float, wall_s: float, lags_ms: list[float]) -> ClientHealth:
    """Return whether the client was the bottleneck, and why."""
    share = cpu_s / wall_s if wall_s > 0 else 0.0
    lag = float(np.percentile(lags_ms, 99)) if lags_ms else 0.0
    reasons = []
    # Below a second a share means nothing: starting up alone is a few percent of it.
    if wall_s >= 1 and share > MOST_CPU_SHARE:
        reasons.append(f"it used {share:.0%} of a core (at most {MOST_CPU_SHARE:.0%})")
    if len(lags_ms) >= 100 and lag > MOST_LAG_MS:
        reasons.append(f"its event loop came {lag:.1f} ms late (p99; at most {MOST_LAG_MS:g} ms)")
    return ClientHealth(
        cpu_share=share,
        loop_lag_p99_ms=lag,
        schedule_delay_p99_ms=0.0,
        client_bound=bool(reasons),
        bound_reason=" and ".join(reasons),
    )
