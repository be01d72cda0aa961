from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.schedule import Clock, Step, all_steps, launch_order
from tests.factory import plan


def test_launches_are_interleaved() -> None:
    assert launch_order(["a", "b", "c"], 0) == ["a", "b", "c"]
    assert launch_order(["a", "b", "c"], 1) == ["c", "b", "a"]


def test_steps_of_the_plan() -> None:
    steps = all_steps(plan())
    # 2 launches × 3 scenarios × (start + 2 levels × 2 warm + 3 sweeps × 2 levels)
    assert len(steps) == 2 * 3 * (1 + 4 + 6)
    assert [s.scenario for s in steps if s.kind == "start"] == [
        "baseline",
        "spec-v1",
        "spec-v2",
        "spec-v2",
        "spec-v1",
        "baseline",
    ]


def test_time_left_falls_to_nothing() -> None:
    config = plan()
    clock = Clock(config)
    left = [clock.left_s()]
    for step in all_steps(config):
        clock.done(step, 1.0)
        left.append(clock.left_s())
    assert left[0] > 0
    assert left[-1] == 0


@given(st.floats(0.1, 100))
def test_estimate_is_exact_once_every_sort_of_step_was_seen(seconds: float) -> None:
    config = plan()
    clock = Clock(config)
    steps = all_steps(config)
    half = len(steps) // 2
    for step in steps[:half]:
        clock.done(step, seconds)
    assert clock.left_s() == pytest.approx(seconds * (len(steps) - half))


def test_failed_server_and_further_launch_change_what_is_left() -> None:
    config = plan()
    clock = Clock(config)
    before = clock.left_s()
    clock.skip_server("spec-v1", 0)
    assert clock.left_s() < before
    shorter = clock.left_s()
    clock.add_launch(2)
    assert clock.left_s() > shorter


def test_golden_throughput_makes_a_better_first_guess() -> None:
    config = plan(scenarios=["baseline"], launches=1, sweeps=1, levels=[1])
    tokens = config.requests[1] * config.output_tokens
    slow = Clock(config, {"baseline": {1: 10.0}}).left_s()
    fast = Clock(config, {"baseline": {1: 1000.0}}).left_s()
    assert slow - fast == pytest.approx(3 * tokens * (1 / 10 - 1 / 1000))


def test_shorter_warm_up_answers_take_less() -> None:
    config = plan(scenarios=["baseline"], launches=1, sweeps=1, levels=[1], output_tokens=200)
    short = config.model_copy(update={"warm_output_tokens": 50})
    clocks = Clock(config), Clock(short)
    for clock in clocks:
        clock.done(Step("start", "baseline", 0), 0.0)
    # Two warm passes and one sweep: 3 against 2 / 4 + 1 parts.
    assert clocks[1].left_s() == pytest.approx(clocks[0].left_s() * 1.5 / 3)
    for clock in clocks:
        clock.done(Step("sweep", "baseline", 0, 1, 0), 8.0)
    assert (clocks[0].left_s(), clocks[1].left_s()) == (16.0, 4.0)
