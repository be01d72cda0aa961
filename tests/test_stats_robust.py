"""Flags for values far from the rest."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit import stats

samples = st.lists(st.floats(1, 1000), min_size=1, max_size=15)


def test_the_disturbed_sweep_is_flagged_and_nothing_else() -> None:
    data = [100.0, 101.0, 99.5, 70.0, 100.4, 100.2]
    assert stats.outliers(data) == [False, False, False, True, False, False]


def test_the_score_is_that_of_iglewicz_and_hoaglin() -> None:
    # Median 3, MAD 1: the score of x is 0.6745·|x − 3|, so 3.5 lies at a distance of 5.189.
    assert stats.outliers([1, 2, 3, 4, 3 + 5.18]) == [False] * 5
    assert stats.outliers([1, 2, 3, 4, 3 + 5.20])[-1]
    assert stats.outliers([1, 2, 3, 4, 3 + 5.18], threshold=3.0)[-1]


def test_one_stray_among_equal_values_is_flagged() -> None:
    assert stats.outliers([5.0] * 9 + [6.0]) == [False] * 9 + [True]


def test_equal_and_few_values_have_no_flags() -> None:
    assert stats.outliers([5.0] * 9) == [False] * 9
    assert stats.outliers([1.0, 1.01, 100.0]) == [False] * 3


@pytest.mark.parametrize("threshold", [0.0, -1.0, math.nan])
def test_a_threshold_must_be_positive(threshold: float) -> None:
    with pytest.raises(ValueError, match="threshold"):
        stats.outliers([1.0, 2.0], threshold)


@given(samples, st.floats(0.01, 100), st.floats(-1000, 1000))
def test_flags_keep_their_place_and_their_number(
    data: list[float], factor: float, shift: float
) -> None:
    flags = stats.outliers(data)
    assert len(flags) == len(data)
    assert stats.outliers(data[::-1]) == flags[::-1]
    # Fewer than half can be far from the median.
    assert sum(flags) * 2 < len(data) or not any(flags)
