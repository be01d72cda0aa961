"""The client's verdict on itself."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest
import uvloop

from kit.load.health import Probe, Vitals, bound_reasons, health_of


@pytest.mark.parametrize(
    ("cpu", "wall", "lags", "latency", "bound"),
    [
        (0.4, 1.0, [], None, False),
        (0.6, 1.0, [], None, True),
        (0.06, 0.1, [], None, False),  # too short for a share to mean anything
        (0.1, 5.0, [30.0] * 200, None, True),
        (0.1, 5.0, [1.0] * 200, None, False),
        (0.1, 5.0, [30.0] * 200, 60.0, False),  # 0.05 % of a request
        (0.1, 5.0, [3.0] * 200, 0.2, True),  # 1.5 % of a request
        (0.1, 5.0, [3.0] * 200, 2.0, False),
        (0.1, 5.0, [0.5] * 200, 0.01, False),  # within what the clock of a busy host can tell
        (0.1, 5.0, [0.1] * 190 + [300.0] * 10, 1000.0, False),
        (0.1, 5.0, [30.0] * 99, None, False),  # too few to judge
        (0.0, 0.0, [], None, False),
    ],
)
def test_when_a_level_is_client_bound(
    cpu: float, wall: float, lags: list[float], latency: float | None, bound: bool
) -> None:
    assert bool(bound_reasons(cpu, wall, lags, latency_s=latency)) is bound


def test_an_open_loop_that_sends_late_is_client_bound() -> None:
    assert not bound_reasons(0.1, 5.0, [], open_delays_ms=[0.1] * 10 + [500.0])
    assert bound_reasons(0.1, 5.0, [], open_delays_ms=[11.0] * 10)


def test_several_processes_are_judged_by_the_worst() -> None:
    lazy = Vitals(cpu_s=0.1, lags_ms=[0.1] * 200, delays_ms=[1.0], gc_pauses_ms=[2.0], events=100)
    busy = Vitals(
        cpu_s=3.0, lags_ms=[0.2] * 200, delays_ms=[3.0], gc_pauses_ms=[5.0, 1.0], events=300
    )
    health = health_of([lazy, busy], 5.0, 1.0, False)
    assert health.client_bound
    assert "60%" in health.bound_reason
    assert health.cpu_share == pytest.approx(0.6)
    assert health.loop_lag_p99_ms == pytest.approx(0.2)
    assert (health.gc_pause_max_ms, health.gc_pause_total_ms) == (5.0, 8.0)
    assert (health.events, health.workers) == (400, 2)
    assert health.cpu_us_per_event == pytest.approx(3.1e6 / 400)
    # A closed loop's delay is part of what is measured, not a broken schedule.
    assert health_of([Vitals(delays_ms=[50.0] * 9)], 5.0, 1.0, False).client_bound is False
    assert health_of([Vitals(delays_ms=[50.0] * 9)], 5.0, 1.0, True).client_bound is True


def test_the_probe_sees_a_blocked_loop_cpu_time_and_collections() -> None:
    async def main() -> Vitals:
        probe = Probe(asyncio.get_running_loop())
        await asyncio.sleep(0.02)
        begin = time.process_time()
        while time.process_time() - begin < 0.06:
            pass
        gc.collect()
        await asyncio.sleep(0.02)
        return probe.stop()

    before = len(gc.callbacks)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        vitals = runner.run(main())
    assert max(vitals.lags_ms) > 40
    # Each tick that the block swallowed is there, later and later.
    assert sum(lag > 10 for lag in vitals.lags_ms) >= 8
    assert vitals.cpu_s >= 0.06
    assert vitals.gc_pauses_ms
    assert len(gc.callbacks) == before


def test_a_level_of_no_length_has_no_share() -> None:
    found = health_of([Vitals(cpu_s=1.0)], 0.0, None, False)
    assert (found.cpu_share, found.client_bound, found.cpu_us_per_event) == (0.0, False, None)
