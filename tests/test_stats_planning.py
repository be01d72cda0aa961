"""What precision costs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit import stats

cvs = st.floats(0.001, 0.1)
counts = st.integers(2, 12)


@pytest.mark.parametrize(
    ("launches", "other", "scenarios"), [(3, 5, 1), (2, 2, 1), (4, 4, 1), (3, 5, 3), (1, 5, 1)]
)
def test_the_expected_half_width_is_the_mean_of_simulated_ones(
    launches: int, other: int, scenarios: int
) -> None:
    rng = np.random.default_rng(11)
    widths = []
    for _ in range(600):
        a, b, *rest = [
            np.exp(rng.normal(0, 0.02, (n, 1)) + rng.normal(0, 0.03, (n, 3))).tolist()
            for n in (launches, other, *(launches, other) * (scenarios - 1))
        ]
        beside = [noise for g in rest if (noise := stats.noise_of(g))]
        widths.append(stats.ratio_ci(a, b, beside=beside).relative_half_width)
    expected = stats.expected_half_width(
        0.02, 0.03, launches, 3, other_launches=other, scenarios=scenarios
    )
    assert np.mean(widths) == pytest.approx(expected, rel=0.06)


def test_without_two_launches_there_is_no_width() -> None:
    assert stats.expected_half_width(0.01, 0.01, 1, 3) == math.inf
    assert math.isfinite(stats.expected_half_width(0.01, 0.01, 1, 3, other_launches=3))
    assert stats.expected_half_width(0.0, 0.0, 2, 1) == 0.0


def test_a_reference_of_fewer_sweeps_is_less_certain() -> None:
    few, same, many = (
        stats.expected_half_width(0.0, 0.03, 3, 4, other_launches=3, other_sweeps=n)
        for n in (1, 4, 16)
    )
    assert same == stats.expected_half_width(0.0, 0.03, 3, 4)
    # Variances in proportion to 1/4 + 1, 1/4 + 1/4 and 1/4 + 1/16.
    assert few / same == pytest.approx(math.sqrt(2.5))
    assert many / same == pytest.approx(math.sqrt(0.625))


@given(cvs, cvs, counts, counts)
def test_more_repetition_and_less_noise_are_narrower(
    launch_cv: float, sweep_cv: float, launches: int, sweeps: int
) -> None:
    def width(noise: float, runs: int, passes: int) -> float:
        return stats.expected_half_width(noise, sweep_cv, runs, passes)

    here = width(launch_cv, launches, sweeps)
    assert width(launch_cv, launches + 1, sweeps) < here
    assert width(launch_cv, launches, sweeps + 1) < here
    assert width(launch_cv * 2, launches, sweeps) > here


def test_quiet_launches_are_swept_often_and_noisy_ones_started_often() -> None:
    sweeping = stats.plan_repetitions(0.001, 0.03, 120, 10, 0.02)
    starting = stats.plan_repetitions(0.03, 0.001, 120, 10, 0.02)
    assert sweeping.sweeps > 3
    assert starting.sweeps == 1
    assert starting.launches > sweeping.launches


@settings(deadline=None, max_examples=40)
@given(cvs, cvs, st.floats(1, 300), st.floats(1, 300), st.floats(0.01, 0.2))
def test_a_plan_reaches_its_target_as_cheaply_as_can_be(
    launch_cv: float, sweep_cv: float, launch_s: float, sweep_s: float, target: float
) -> None:
    plan = stats.plan_repetitions(
        launch_cv, sweep_cv, launch_s, sweep_s, target, max_launches=8, max_sweeps=6
    )
    assert plan.seconds == pytest.approx(plan.launches * (launch_s + plan.sweeps * sweep_s))
    assert plan.fits_budget
    assert plan.reaches_target == (plan.expected_half_width <= target)
    for launches in range(2, 9):
        for sweeps in range(1, 7):
            width = stats.expected_half_width(launch_cv, sweep_cv, launches, sweeps)
            if launches * (launch_s + sweeps * sweep_s) < plan.seconds * (1 - 1e-9):
                assert not plan.reaches_target or width > target
            if not plan.reaches_target:
                assert width >= plan.expected_half_width


@settings(deadline=None, max_examples=40)
@given(st.floats(60, 3000), st.floats(0, 3000))
def test_more_time_never_buys_less(budget: float, more: float) -> None:
    def plan(seconds: float) -> stats.Plan:
        return stats.plan_repetitions(
            0.02, 0.02, 60, 40, 0.02, seconds, max_launches=10, max_sweeps=6
        )

    one, other = plan(budget), plan(budget + more)
    for p, seconds in ((one, budget), (other, budget + more)):
        assert p.fits_budget == (p.seconds <= seconds)
    if one.fits_budget:
        assert other.fits_budget
        assert other.reaches_target or other.expected_half_width <= one.expected_half_width


def test_a_budget_that_fits_nothing_is_said_so() -> None:
    plan = stats.plan_repetitions(0.01, 0.01, 60, 40, 0.02, 30)
    assert not plan.fits_budget
    assert (plan.launches, plan.sweeps, plan.seconds) == (2, 1, 200)


@pytest.mark.parametrize(
    "arguments",
    [
        (-0.1, 0.1, 1, 1, 0.1),
        (0.1, math.nan, 1, 1, 0.1),
        (0.1, 0.1, -1, 1, 0.1),
        (0.1, 0.1, 1, 0, 0.1),
        (0.1, 0.1, 1, 1, 0.0),
    ],
)
def test_what_cannot_be_is_refused(arguments: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"coefficient|cost|target"):
        stats.plan_repetitions(*arguments)


def test_there_must_be_a_choice() -> None:
    with pytest.raises(ValueError, match="choice"):
        stats.plan_repetitions(0.1, 0.1, 1, 1, 0.1, min_launches=5, max_launches=4)
    with pytest.raises(ValueError, match="at least 1"):
        stats.expected_half_width(0.1, 0.1, 2, 0)
