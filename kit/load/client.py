"""Run one level: the entry points of the load client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import uvloop

from kit.errors import UserError
from kit.load.arrivals import planned_sends
from kit.load.health import Vitals, health_of
from kit.load.level import Level, OnResult, quiet_collector
from kit.load.model import Arrival, ClosedLoop, Endpoint, LevelResult, Request, RequestResult
from kit.load.workers import run_workers

__all__ = ["assemble", "run_level", "run_level_async"]


def assemble(
    results: Sequence[RequestResult], vitals: Sequence[Vitals], arrival: Arrival
) -> LevelResult:
    """Put a level together from what its processes brought. Pure."""
    ordered = sorted(results, key=lambda r: r.index)
    start = min((r.send_ns for r in ordered), default=0)
    end = max((r.end_ns for r in ordered), default=0)
    good = [r.end_ns - r.send_ns for r in ordered if r.error is None]
    health = health_of(
        vitals,
        (end - start) * 1e-9,
        sum(good) / len(good) * 1e-9 if good else None,
        not isinstance(arrival, ClosedLoop),
    )
    return LevelResult(ordered, start, end, health, arrival)


def _ignore(_: RequestResult) -> None:
    pass


async def run_level_async(
    endpoint: Endpoint,
    requests: Sequence[Request],
    arrival: Arrival,
    *,
    timeout_s: float,
    on_result: OnResult | None = None,
) -> LevelResult:
    """Like :func:`run_level` in one process, within a running event loop."""
    heard = on_result or _ignore
    if isinstance(arrival, ClosedLoop):
        left = iter(range(len(requests)))
        level = Level(
            endpoint,
            requests,
            timeout_s,
            heard,
            next_index=lambda: next(left, None),
            slots=min(arrival.concurrency, len(requests)),
        )
    else:
        sends = planned_sends(arrival, len(requests))
        level = Level(
            endpoint, requests, timeout_s, heard, sends=[(at, i) for i, at in enumerate(sends)]
        )
    await level.prepare()
    with quiet_collector():
        await level.run(time.perf_counter_ns() + 1_000_000)
    return assemble(level.results, [level.vitals], arrival)


def run_level(
    endpoint: Endpoint,
    requests: Sequence[Request],
    arrival: Arrival,
    *,
    timeout_s: float,
    on_result: OnResult | None = None,
    workers: int = 1,
) -> LevelResult:
    """Send ``requests`` and return when all have ended.

    What goes wrong with a request is noted on its result and never stops the others.

    Args:
        endpoint: The server.
        requests: What to send, in this order; their indices must differ.
        arrival: When requests are sent.
        timeout_s: Seconds a request may take, connecting included.
        on_result: Called in this process as each request ends. An exception of it ends the level and is raised.
        workers: Client processes; :func:`workers_for` says how many a rate of events needs.

    Raises:
        UserError: a bad URL, a prompt that the API cannot take, or a trace that does not fit the requests.
        KeyboardInterrupt: as it came; results that ended before it went to ``on_result``.
    """
    if len({r.index for r in requests}) != len(requests):
        raise UserError("Two requests of a level have the same index.", "Number them.")
    if workers > 1 and len(requests) > 1:
        heard = on_result or _ignore
        results, vitals = run_workers(endpoint, requests, arrival, timeout_s, heard, workers)
        return assemble(results, vitals, arrival)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(
            run_level_async(endpoint, requests, arrival, timeout_s=timeout_s, on_result=on_result)
        )
