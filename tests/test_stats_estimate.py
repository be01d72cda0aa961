"""Intervals of a plain sample."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from kit import stats
from kit.stats.estimate import BOOTSTRAP_RESAMPLES, BOOTSTRAP_SEED, least_n_for_median

values = st.lists(st.floats(0.1, 1e4), min_size=2, max_size=12)
confidences = st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99])


def test_mean_is_that_of_a_t_test() -> None:
    data = [10.0, 11.0, 9.5, 10.2]
    found = stats.mean_ci(data)
    expected = scipy_stats.ttest_1samp(data, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.value == pytest.approx(np.mean(data))
    assert found.n == 4
    assert found.half_width == pytest.approx((expected.high - expected.low) / 2)
    assert found.relative_half_width == pytest.approx(found.half_width / found.value)


def test_one_value_has_no_interval() -> None:
    for found in (stats.mean_ci([3.0]), stats.median_ci([3.0])):
        assert found.value == 3.0
        assert (found.low, found.high) == (-math.inf, math.inf)
        assert found.relative_half_width == math.inf
        assert found.method.startswith("none")


def test_a_value_of_zero_has_no_relative_width() -> None:
    assert stats.mean_ci([-1.0, 1.0]).relative_half_width == math.inf


def test_five_values_cannot_bound_a_median_and_six_can() -> None:
    assert least_n_for_median(0.95) == 6
    assert least_n_for_median(0.5) == 2
    assert stats.median_ci([1, 2, 3, 4, 5]).high == math.inf
    six = stats.median_ci([1, 2, 3, 4, 5, 6])
    assert 1 <= six.low < 3.5 < six.high <= 6
    assert six.method == "BCa bootstrap"


def test_the_median_bootstrap_is_that_of_scipy_and_repeats() -> None:
    data = [float(x) for x in np.random.default_rng(1).lognormal(size=10)]
    found = stats.median_ci(data)
    theirs = scipy_stats.bootstrap(
        (sorted(data),),
        np.median,
        n_resamples=BOOTSTRAP_RESAMPLES,
        method="BCa",
        rng=np.random.default_rng(BOOTSTRAP_SEED),
    ).confidence_interval
    assert (found.low, found.high) == (theirs.low, theirs.high)
    assert stats.median_ci(data) == found


def test_a_sample_whose_median_never_moves_still_has_a_finite_interval() -> None:
    found = stats.median_ci([1.0, 5.0, 5.0, 5.0, 5.0, 5.0, 9.0])
    assert found.value == 5.0
    assert math.isfinite(found.low)
    assert math.isfinite(found.high)


def test_equal_values_have_an_interval_of_no_width() -> None:
    for found in (stats.mean_ci([2.0] * 8), stats.median_ci([2.0] * 8)):
        assert (found.low, found.value, found.high) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize("bad", [[], [1.0, math.nan], [1.0, math.inf]])
def test_what_is_no_number_is_refused(bad: list[float]) -> None:
    for function in (stats.mean_ci, stats.median_ci, stats.geometric_mean, stats.outliers):
        with pytest.raises(ValueError, match=r"at least one value|finite"):
            function(bad)


@pytest.mark.parametrize("confidence", [0.0, 1.0, -0.5, 95.0, math.nan])
def test_a_confidence_outside_zero_and_one_is_refused(confidence: float) -> None:
    for function in (stats.mean_ci, stats.median_ci):
        with pytest.raises(ValueError, match="confidence"):
            function([1.0, 2.0], confidence)
    with pytest.raises(ValueError, match="confidence"):
        stats.hierarchical_ci([[1.0], [2.0]], confidence=confidence)


@given(values, confidences)
def test_the_interval_holds_the_estimate(data: list[float], confidence: float) -> None:
    for found in (stats.mean_ci(data, confidence), stats.median_ci(data, confidence)):
        assert found.low <= found.value <= found.high
        assert found.confidence == confidence


@given(values, st.randoms(use_true_random=False))
def test_order_does_not_matter(data: list[float], order: random.Random) -> None:
    mixed = data.copy()
    order.shuffle(mixed)
    assert stats.mean_ci(mixed) == stats.mean_ci(data)
    assert stats.median_ci(mixed) == stats.median_ci(data)
    assert stats.geometric_mean(mixed) == stats.geometric_mean(data)


@given(values)
def test_more_confidence_is_wider(data: list[float]) -> None:
    widths = [stats.mean_ci(data, c).half_width for c in (0.5, 0.9, 0.95, 0.99)]
    assert widths == sorted(widths)
    assume(max(data) > min(data) * 1.001)
    assert widths[0] < widths[-1]


@given(st.lists(st.floats(0.1, 1e4), min_size=1, max_size=12), st.floats(0.01, 100))
def test_the_geometric_mean_scales_and_lies_between(data: list[float], factor: float) -> None:
    mean = stats.geometric_mean(data)
    assert min(data) * (1 - 1e-9) <= mean <= max(data) * (1 + 1e-9)
    assert stats.geometric_mean(x * factor for x in data) == pytest.approx(mean * factor)


def test_the_geometric_mean_of_known_numbers() -> None:
    assert stats.geometric_mean([1.0, 100.0]) == pytest.approx(10.0)
    with pytest.raises(ValueError, match="positive"):
        stats.geometric_mean([1.0, 0.0])
