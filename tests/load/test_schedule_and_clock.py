"""When an open loop means to send, and the timers that it sends by."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import UserError
from kit.load import ClosedLoop, ConstantRate, Poisson, Trace
from kit.load.arrivals import planned_sends
from kit.load.clock import Alarm, Ticker


@given(st.floats(0.01, 1e4), st.integers(0, 2**32), st.integers(0, 200))
def test_poisson_is_ordered_and_fixed_by_its_seed(rate: float, seed: int, count: int) -> None:
    sends = planned_sends(Poisson(rate, seed), count)
    assert sends == planned_sends(Poisson(rate, seed), count)
    assert len(sends) == count
    assert sends == sorted(sends)
    assert all(s >= 0 for s in sends)


def test_poisson_gaps_are_exponential_with_the_right_rate() -> None:
    gaps = np.diff(planned_sends(Poisson(50, seed=1), 20_000)) * 1e-9
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.03)
    assert gaps.std() == pytest.approx(1 / 50, rel=0.05)
    assert np.mean(gaps > 1 / 50) == pytest.approx(np.exp(-1), rel=0.05)
    assert planned_sends(Poisson(50, seed=2), 5) != planned_sends(Poisson(50, seed=1), 5)


def test_constant_rate_and_trace() -> None:
    assert planned_sends(ConstantRate(4), 3) == [0, 250_000_000, 500_000_000]
    assert planned_sends(Trace((0.5, 0.5, 2.0)), 3) == [500_000_000, 500_000_000, 2_000_000_000]


@pytest.mark.parametrize("bad", [0, -1, float("inf"), float("nan")])
def test_rates_that_cannot_be_sent(bad: float) -> None:
    with pytest.raises(UserError):
        Poisson(bad)
    with pytest.raises(UserError):
        ConstantRate(bad)


@pytest.mark.parametrize("bad", [(1.0, 0.5), (-1.0,), (float("nan"),)])
def test_traces_that_cannot_be_sent(bad: tuple[float, ...]) -> None:
    with pytest.raises(UserError):
        Trace(bad)


def test_concurrency_of_nothing() -> None:
    with pytest.raises(UserError):
        ClosedLoop(0)


@pytest.mark.parametrize("loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_an_alarm_rings_once_and_never_early(loop) -> None:  # type: ignore[no-untyped-def]
    async def main() -> list[int]:
        rung: list[int] = []
        alarm = Alarm(asyncio.get_running_loop(), lambda: rung.append(time.perf_counter_ns()))
        begin = time.perf_counter_ns()
        alarm.at(begin + 3_300_000)
        await asyncio.sleep(0.05)
        alarm.at(begin)  # over already: at once
        await asyncio.sleep(0.05)
        alarm.at(time.perf_counter_ns() + 1_000_000)
        alarm.close()
        await asyncio.sleep(0.01)
        return [at - begin for at in rung]

    with asyncio.Runner(loop_factory=loop) as runner:
        rung = runner.run(main())
    assert len(rung) == 2
    assert rung[0] >= 3_300_000


def test_a_ticker_reports_every_tick_that_a_blocked_loop_missed() -> None:
    async def main() -> list[int]:
        dues: list[int] = []
        ticker = Ticker(asyncio.get_running_loop(), 1_000_000, dues.append)
        await asyncio.sleep(0)
        time.sleep(0.02)  # the loop is blocked for twenty ticks
        await asyncio.sleep(0.005)
        ticker.close()
        return dues

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        dues = runner.run(main())
    assert len(dues) >= 20
    assert set(np.diff(dues)) == {1_000_000}
