"""Decisions from intervals."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from kit import stats
from kit.stats.estimate import log_interval

deltas = st.floats(0.01, 0.5)
estimates = st.builds(
    lambda mean, error, df, c: log_interval(mean, error, df, 3, c, "made up"),
    st.floats(-0.7, 0.7),
    st.floats(1e-4, 0.3),
    st.floats(1, 50),
    st.just(0.95),
)
p_lists = st.lists(st.floats(0, 1), max_size=12)


def ratio(low: float, value: float, high: float) -> stats.Estimate:
    return stats.Estimate(value, low, high, 0.95, 3, "made up")


@pytest.mark.parametrize(
    ("low", "high", "where"),
    [
        (0.96, 1.04, "inside"),
        (0.95, 1.05, "inside"),
        (0.90, 0.94, "below"),
        (1.06, 1.10, "above"),
        (0.94, 1.00, "straddles_low"),
        (1.00, 1.06, "straddles_high"),
        (0.90, 1.10, "straddles_both"),
        (0.0, math.inf, "straddles_both"),
    ],
)
def test_where_an_interval_lies(low: float, high: float, where: stats.Where) -> None:
    assert stats.equivalence(ratio(low, 1.0, high), 0.05) == where


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, math.nan])
def test_a_band_must_be_between_zero_and_one(delta: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        stats.equivalence(ratio(0.9, 1, 1.1), delta)
    with pytest.raises(ValueError, match="delta"):
        stats.tost_p_values(ratio(0.9, 1, 1.1), delta)
    with pytest.raises(ValueError, match="delta"):
        stats.calls({}, {}, material=delta)


@given(estimates, deltas, deltas)
def test_a_wider_band_never_loses_what_a_narrower_one_held(
    estimate: stats.Estimate, one: float, other: float
) -> None:
    narrow, wide = sorted((one, other))
    if stats.equivalence(estimate, narrow) == "inside":
        assert stats.equivalence(estimate, wide) == "inside"
    if stats.equivalence(estimate, wide) in ("below", "above"):
        assert stats.equivalence(estimate, narrow) == stats.equivalence(estimate, wide)
    assert max(stats.tost_p_values(estimate, wide)) <= max(stats.tost_p_values(estimate, narrow))


@given(st.floats(-0.2, 0.2), st.floats(1e-3, 0.2), st.floats(1, 40), deltas)
def test_two_one_sided_tests_agree_with_the_interval(
    mean: float, error: float, df: float, delta: float
) -> None:
    wide = log_interval(mean, error, df, 3, 0.95, "made up")
    p = max(stats.tost_p_values(wide, delta))
    if abs(p - 0.025) > 1e-9:
        assert (p < 0.025) == (stats.equivalence(wide, delta) == "inside")
    narrow = log_interval(mean, error, df, 3, 0.90, "made up")
    if abs(p - 0.05) > 1e-9:
        assert (p < 0.05) == (stats.equivalence(narrow, delta) == "inside")


def test_p_values_are_those_of_t() -> None:
    estimate = log_interval(math.log(0.97), 0.01, 4, 3, 0.95, "made up")
    low, high = stats.tost_p_values(estimate, 0.05)
    assert low == pytest.approx(scipy_stats.t.sf((math.log(0.97) - math.log(0.95)) / 0.01, 4))
    assert high == pytest.approx(scipy_stats.t.cdf((math.log(0.97) - math.log(1.05)) / 0.01, 4))
    assert stats.difference_p_value(estimate) == pytest.approx(
        2 * scipy_stats.t.sf(-math.log(0.97) / 0.01, 4)
    )
    assert stats.difference_p_value(estimate, 0.97) == pytest.approx(1)


@given(estimates)
def test_a_difference_is_significant_where_the_interval_leaves_one_out(
    estimate: stats.Estimate,
) -> None:
    p = stats.difference_p_value(estimate)
    assert 0 <= p <= 1
    if abs(p - 0.05) > 1e-9:
        assert (p > 0.05) == (estimate.low <= 1 <= estimate.high)


def test_without_an_interval_nothing_is_decided() -> None:
    single = stats.hierarchical_ci([[1.0, 1.01]])
    assert stats.tost_p_values(single, 0.05) == (1.0, 1.0)
    assert stats.difference_p_value(single, 0.5) == 1.0
    assert stats.calls({"a": single}, {"a": 0.05}) == {"a": "undecided"}
    assert not stats.enough(single, 0.05)


def test_without_noise_everything_is_decided() -> None:
    exact = stats.hierarchical_ci([[0.9], [0.9]])
    assert stats.tost_p_values(exact, 0.05) == (1.0, 0.0)
    assert stats.tost_p_values(exact, 0.2) == (0.0, 0.0)
    assert stats.difference_p_value(exact) == 0.0
    assert stats.difference_p_value(stats.hierarchical_ci([[1.0], [1.0]])) == 1.0
    high = stats.hierarchical_ci([[1.5], [1.5]])
    assert stats.tost_p_values(high, 0.2) == (0.0, 1.0)


def test_holm_of_a_known_example() -> None:
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([]) == []


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_holm_refuses_what_is_no_probability(p: float) -> None:
    with pytest.raises(ValueError, match="p values"):
        stats.holm([0.5, p])


@given(p_lists)
def test_holm_keeps_order_and_lies_between_single_and_bonferroni(p: list[float]) -> None:
    adjusted = stats.holm(p)
    for a, b in zip(p, adjusted, strict=True):
        assert a <= b <= min(1.0, len(p) * a) + 1e-12
    ranked = [b for _, b in sorted(zip(p, adjusted, strict=True))]
    assert ranked == sorted(ranked)
    assert stats.holm(p[::-1]) == adjusted[::-1]


def made(value: float, error: float) -> stats.Estimate:
    return log_interval(math.log(value), error, 18, 3, 0.95, "made up")


def test_calls_of_one_run() -> None:
    ratios = {
        "steady": made(1.00, 0.01),
        "slow": made(0.93, 0.01),
        "fast": made(1.10, 0.01),
        "slightly slow": made(0.97, 0.005),
        "noisy": made(0.90, 0.06),
    }
    assert stats.calls(ratios, dict.fromkeys(ratios, 0.05)) == {
        "steady": "same",
        "slow": "lower",
        "fast": "higher",
        "slightly slow": "same",
        "noisy": "undecided",
    }


def test_the_more_levels_are_looked_at_the_stronger_the_evidence_must_be() -> None:
    # p = 0.02 for the level that is off.
    off = log_interval(
        math.log(0.93), math.log(0.93) / scipy_stats.t.ppf(0.01, 18), 18, 3, 0.95, ""
    )
    assert stats.calls({0: off}, {0: 0.05})[0] == "lower"
    still = {i: made(1.0, 0.01) for i in range(1, 10)}
    many = stats.calls({0: off, **still}, dict.fromkeys(range(10), 0.05))
    assert many[0] == "undecided"
    assert set(many.values()) == {"undecided", "same"}


def test_a_wide_band_does_not_hide_a_material_difference() -> None:
    slow = {0: made(0.93, 0.004)}
    assert stats.equivalence(slow[0], 0.1) == "inside"
    assert stats.calls(slow, {0: 0.1})[0] == "lower"
    assert stats.calls(slow, {0: 0.1}, material=0.08)[0] == "same"
    assert stats.calls({0: made(1.07, 0.004)}, {0: 0.1})[0] == "higher"


@given(st.dictionaries(st.integers(0, 9), estimates, max_size=8), deltas)
def test_every_level_gets_one_call_that_fits_it(
    ratios: dict[int, stats.Estimate], delta: float
) -> None:
    found = stats.calls(ratios, dict.fromkeys(ratios, delta))
    assert found.keys() == ratios.keys()
    for key, call in found.items():
        e = ratios[key]
        if call == "lower":
            assert e.value < 0.95
            assert e.high < 1
        elif call == "higher":
            assert e.value > 1.05
            assert e.low > 1
        elif call == "same":
            assert 1 - delta <= e.low
            assert e.high <= 1 + delta


def test_tolerance_is_four_standard_errors_between_floor_and_ceiling() -> None:
    assert stats.tolerance(0.0, 0.0) == 0.05
    assert stats.tolerance(0.012, 0.016) == pytest.approx(0.08)
    assert stats.tolerance(0.1, 0.1) == 0.10
    assert stats.tolerance(0.0, 0.0, floor=0.02) == 0.02
    assert stats.tolerance(0.5, 0.5, floor=0.2) == 0.2


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0.01, 0.2))
def test_tolerance_grows_with_either_noise(a: float, b: float, more: float, floor: float) -> None:
    assert floor <= stats.tolerance(a, b, floor) <= max(floor, stats.MAX_TOLERANCE)
    assert stats.tolerance(a, b, floor) == stats.tolerance(b, a, floor)
    assert stats.tolerance(a + more, b, floor) >= stats.tolerance(a, b, floor)


def test_the_tolerance_of_a_ratio_comes_from_its_own_error() -> None:
    assert stats.tolerance_for(made(1.0, 0.02)) == pytest.approx(0.08)
    assert stats.tolerance_for(made(1.0, 0.002)) == 0.05
    assert stats.tolerance_for(made(1.0, 0.002), floor=0.03) == 0.03
    assert stats.tolerance_for(made(1.0, 0.2), ceiling=0.2) == 0.2
    assert stats.tolerance_for(stats.hierarchical_ci([[1.0]]), floor=0.04) == 0.04


@pytest.mark.parametrize(
    "arguments", [(-0.1, 0.0), (0.0, math.nan), (math.inf, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 1.0)]
)
def test_tolerance_refuses_what_cannot_be(arguments: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"errors|floor"):
        stats.tolerance(*arguments)


def test_enough_is_a_half_width_under_half_the_tolerance() -> None:
    assert stats.enough(ratio(0.976, 1.0, 1.024), 0.05)
    assert not stats.enough(ratio(0.974, 1.0, 1.026), 0.05)
    assert stats.enough(ratio(0.974, 1.0, 1.026), 0.06)
