"""Prove that the client is not the bottleneck on this machine: drive the null server and compare both counts.

Three passes. The published rate as a closed loop, ten times the published rate as a closed loop, and ten times
the published rate with requests spread evenly. Only the last can tell what the client adds to the time to first
token: when all requests of a closed loop start at once, the server itself takes milliseconds to read them.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version

from kit.load.client import run_level
from kit.load.metrics import summarize
from kit.load.model import ClosedLoop, ConstantRate, Endpoint, LevelMetrics, LevelResult, Request
from kit.load.nulldata import NullConfig, NullStats
from kit.load.nullserver import null_server

# The fastest level of the published result (spec-v2), output tokens a second; one token an event is the worst case.
PUBLISHED_TOK_S = 775.0
PUBLISHED_STREAMS = 30
PROMPT_TOKENS = 64
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing measured against its limit."""

    name: str
    value: float
    limit: float
    unit: str
    at_least: bool = False

    @property
    def passed(self) -> bool:
        """Within the limit; not if the value is not a number."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing measured that has no limit of its own."""

    name: str
    value: float
    unit: str


@dataclass(frozen=True, slots=True)
class SelfTestReport:
    """What the self-test found.

    Attributes:
        checks: Each measurement with its limit.
        headroom: Events a second that one client process could read at half a core ÷ the published rate.
        cpu_us_per_event: CPU time of the client per event at ten times the published rate, microseconds.
        machine: What this is.
        faults: Requests that failed, in words; empty in a sound test.
        figures: What else was measured; it is part of the loop lag, which has a limit.
    """

    checks: tuple[Check, ...]
    headroom: float
    cpu_us_per_event: float
    machine: str
    faults: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()

    @property
    def passed(self) -> bool:
        """All checks passed and no request failed."""
        return not self.faults and all(c.passed for c in self.checks)

    def text(self) -> str:
        """Return the report as lines to print."""
        lines = [
            f"Load client self-test: {'passed' if self.passed else 'FAILED'}",
            self.machine,
            "",
        ]
        for c in self.checks:
            sign = "≥" if c.at_least else "≤"
            mark = "ok  " if c.passed else "FAIL"
            lines.append(f"  {mark} {c.name}: {c.value:,.4g} {c.unit} ({sign} {c.limit:,.4g})")
        lines += [f"       {f.name}: {f.value:,.4g} {f.unit}" for f in self.figures]
        lines += [f"  FAIL {fault}" for fault in self.faults]
        lines += [
            "",
            f"Headroom: one client process at half a core reads {self.headroom:,.0f} times the"
            f" published {PUBLISHED_TOK_S:g} events a second ({self.cpu_us_per_event:.1f} µs CPU an event).",
        ]
        return "\n".join(lines)


@contextlib.contextmanager
def core_for_the_server() -> Iterator[int]:
    """Give the last core to the null server and the others to this process, -1 where there is one core only."""
    if not hasattr(os, "sched_getaffinity") or len(cores := sorted(os.sched_getaffinity(0))) < 2:
        yield -1
        return
    os.sched_setaffinity(0, cores[:-1])
    try:
        yield cores[-1]
    finally:
        os.sched_setaffinity(0, cores)


@dataclass(frozen=True, slots=True)
class _Pass:
    """One pass against the null server, both sides of it."""

    level: LevelResult
    metrics: LevelMetrics
    server: NullStats

    @property
    def events_s(self) -> float:
        return self.level.health.events / ((self.level.end_ns - self.level.start_ns) * 1e-9)

    @property
    def throughput_bias(self) -> float:
        return abs(self.metrics.tok_s / self.server.tok_s - 1) if self.server.tok_s else math.inf

    @property
    def added_ttft_ms(self) -> float:
        seen = [r.first_ns - r.send_ns for r in self.level.results if r.first_ns is not None]
        if not seen:
            return math.inf
        return (statistics.fmean(seen) * 1e-9 - self.server.mean_ttft_s) * 1e3


def lost(name: str, level: LevelResult, server: NullStats) -> list[str]:
    """Say what failed and what did not arrive."""
    kinds = Counter(r.error.kind for r in level.results if r.error is not None)
    told = [f"{name}: {n} × {kind}" for kind, n in sorted(kinds.items())]
    tokens = sum(r.completion_tokens or 0 for r in level.results)
    if tokens != server.tokens:
        told.append(f"{name}: {tokens} tokens arrived of {server.tokens} sent")
    return told


def _pass(streams: int, rate: float, seconds: float, spread: bool, cpu: int) -> _Pass:
    """Run one pass: ``streams`` streams that bring ``rate`` events a second together."""
    interval_s = streams / rate
    # Two rounds of requests, so that replacing one is part of it.
    tokens = max(2, round(seconds / 2 / interval_s))
    config = NullConfig(interval_ms=interval_s * 1e3, ttft_ms=20.0, cpu=cpu)
    requests = [
        Request(index=i, prompt_ids=list(range(1, PROMPT_TOKENS + 1)), max_new_tokens=tokens)
        for i in range(2 * streams)
    ]
    arrival = ConstantRate(rate / tokens) if spread else ClosedLoop(streams)
    with null_server(config) as server:
        # The first requests make the server render its events.
        endpoint = Endpoint(server.url, stream=True)
        run_level(endpoint, requests[:1], ClosedLoop(1), timeout_s=seconds * 4 + 10)
        server.reset()
        level = run_level(endpoint, requests, arrival, timeout_s=seconds * 4 + 10)
        return _Pass(level, summarize(level), server.stats())


def _machine() -> str:
    names = ("uvloop", "httptools", "orjson")
    parts = ", ".join(f"{n} {version(n)}" for n in names)
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {parts}"
    )


def self_test(
    *, seconds: float = 4.0, factor: float = 10.0, progress: Progress | None = None
) -> SelfTestReport:
    """Drive the built-in null server on this machine and return what the client costs and adds.

    Takes about ``4 × seconds``. Other work on the machine shows in the result, as it would in a measurement.

    Args:
        seconds: Length of a pass.
        factor: The second and third pass run at this many times the published rate.
        progress: Told what is being done.

    Raises:
        EngineError: the null server does not come up.
    """
    told = progress or (lambda _: None)
    machine = _machine()
    high = PUBLISHED_TOK_S * factor
    streams = round(PUBLISHED_STREAMS * factor)
    with core_for_the_server() as cpu:
        told(f"closed loop, {PUBLISHED_TOK_S:g} events a second")
        low_pass = _pass(PUBLISHED_STREAMS, PUBLISHED_TOK_S, seconds, False, cpu)
        told(f"closed loop, {high:g} events a second")
        high_pass = _pass(streams, high, seconds, False, cpu)
        told(f"spread requests, {high:g} events a second")
        spread = _pass(streams, high, seconds, True, cpu)
    passes = {"published rate": low_pass, f"{factor:g}×": high_pass, f"{factor:g}×, spread": spread}
    cost = high_pass.level.health.cpu_us_per_event or math.inf
    checks = (
        Check("events a second in one process", high_pass.events_s, 0.95 * high, "1/s", True),
        Check("CPU an event", cost, 25.0, "µs"),
        Check("CPU share at the published rate", low_pass.level.health.cpu_share, 0.5, "of a core"),
        Check(f"CPU share at {factor:g}×", high_pass.level.health.cpu_share, 0.5, "of a core"),
        Check(
            "loop lag p99 at the published rate", low_pass.level.health.loop_lag_p99_ms, 1.0, "ms"
        ),
        Check("throughput off the server's own count", low_pass.throughput_bias * 100, 1.0, "%"),
        Check(f"… at {factor:g}×", high_pass.throughput_bias * 100, 1.0, "%"),
        Check(f"added time to first token at {factor:g}×", spread.added_ttft_ms, 1.0, "ms"),
    )
    figures = [
        Figure(f"{what}, {name}", getattr(p.level.health, field), "ms")
        for name, p in passes.items()
        for what, field in (
            ("longest pause of the garbage collector", "gc_pause_max_ms"),
            ("all its pauses", "gc_pause_total_ms"),
            ("schedule delay p99", "schedule_delay_p99_ms"),
        )
    ]
    return SelfTestReport(
        checks=checks,
        figures=tuple(figures),
        headroom=500_000.0 / cost / PUBLISHED_TOK_S,
        cpu_us_per_event=cost,
        machine=machine,
        faults=tuple(f for name, p in passes.items() for f in lost(name, p.level, p.server)),
    )
