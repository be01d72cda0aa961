"""Intervals of sweeps within launches."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from kit import stats

throughput = st.floats(50, 200)
ragged = st.lists(st.lists(throughput, min_size=1, max_size=4), min_size=1, max_size=5)
nested = st.lists(st.lists(throughput, min_size=1, max_size=4), min_size=2, max_size=5)
noises = st.lists(st.builds(stats.Noise, st.floats(1e-6, 0.1), st.integers(1, 5)), max_size=3).map(
    tuple
)
references = st.one_of(
    st.builds(stats.Reference, throughput),
    st.builds(
        stats.Reference,
        throughput,
        st.integers(2, 6),
        st.integers(6, 20),
        st.floats(0, 0.1),
        st.floats(0, 0.1),
    ),
    throughput,
)
RUN = [[100.0, 101.0, 99.0], [104.0, 103.0, 105.0], [98.0, 97.0, 99.0]]


def logs(groups: list[list[float]]) -> list[float]:
    return [float(np.mean(np.log(g))) for g in groups]


def test_the_interval_is_students_t_on_launch_means() -> None:
    found = stats.hierarchical_ci(RUN)
    low, high = scipy_stats.ttest_1samp(logs(RUN), 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert found.n == 3
    assert found.df == 2


def test_more_sweeps_of_the_same_launches_do_not_pretend_to_be_more_launches() -> None:
    often = [g * 10 for g in RUN]
    assert stats.hierarchical_ci(often).half_width == pytest.approx(
        stats.hierarchical_ci(RUN).half_width
    )


def test_one_launch_has_no_interval_however_many_sweeps() -> None:
    found = stats.hierarchical_ci([[100.0, 100.1, 99.9] * 5])
    assert (found.low, found.high) == (0.0, math.inf)
    assert found.relative_half_width == math.inf
    assert found.method.startswith("none")
    known = stats.hierarchical_ci([[100.0]], beside=[stats.Noise(1e-4, 4)])
    assert known.high / known.value == pytest.approx(math.exp(scipy_stats.t.ppf(0.975, 4) * 0.01))


def test_the_median_of_sweeps_resists_a_disturbed_one() -> None:
    disturbed = [[100.0, 101.0, 60.0], *RUN[1:]]
    clean = stats.hierarchical_ci(RUN, "median").value
    assert stats.hierarchical_ci(disturbed, "median").value == pytest.approx(clean, rel=0.01)
    assert stats.hierarchical_ci(disturbed).value < 0.95 * clean


def test_empty_launches_are_left_out() -> None:
    assert stats.hierarchical_ci([[], *RUN, []]) == stats.hierarchical_ci(RUN)
    assert stats.ratio_ci([[], *RUN], [[1.0], *RUN], paired=True).n == 3


@pytest.mark.parametrize("bad", [[], [[]], [[1.0], [math.nan]], [[0.0]], [[-1.0]], [[math.inf]]])
def test_what_is_no_throughput_is_refused(bad: list[list[float]]) -> None:
    calls: list[Callable[[], object]] = [
        lambda: stats.hierarchical_ci(bad),
        lambda: stats.variance_components(bad),
        lambda: stats.noise_of(bad),
        lambda: stats.relative_spread(bad),
        lambda: stats.ratio_ci(bad, RUN),
        lambda: stats.ratio_ci(RUN, bad),
        lambda: stats.ratio_to_reference(bad, stats.Reference(1.0)),
        lambda: stats.pooled_cv([RUN, bad]),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"no data|finite|positive"):
            call()


def test_variance_components_of_known_data() -> None:
    data = np.exp(
        np.random.default_rng(5).normal(0, 0.02, (4000, 1))
        + np.random.default_rng(6).normal(0, 0.04, (4000, 3))
    )
    launch, sweep = stats.variance_components(data.tolist())
    assert launch == pytest.approx(0.02, rel=0.1)
    assert sweep == pytest.approx(0.04, rel=0.05)


def test_variance_components_that_cannot_be_told_apart() -> None:
    launch, sweep = stats.variance_components([[100.0, 102.0]])
    assert math.isnan(launch)
    assert sweep == pytest.approx(np.log([100, 102]).std(ddof=1))
    launch, sweep = stats.variance_components([[100.0], [102.0]])
    assert launch == pytest.approx(np.log([100, 102]).std(ddof=1))
    assert sweep == 0.0
    # Sweeps that differ more than launches leave nothing for the launches.
    assert stats.variance_components([[90.0, 110.0], [110.0, 90.0]])[0] == 0.0


def test_pooled_noise_weighs_by_degrees_of_freedom() -> None:
    quiet, loud = [[1.0], [1.01]], [[1.0], [1.1], [0.9], [1.05]]
    a, _ = stats.variance_components(quiet)
    b, _ = stats.variance_components(loud)
    launch, sweep = stats.pooled_cv([quiet, loud])
    assert launch == pytest.approx(math.sqrt((a**2 + 3 * b**2) / 4))
    assert sweep == 0.0
    assert stats.pooled_cv([RUN, RUN]) == pytest.approx(stats.variance_components(RUN))
    assert stats.pooled_cv([RUN, [[1.0, 1.0]]])[0] == stats.variance_components(RUN)[0]
    with pytest.raises(ValueError, match="two launches"):
        stats.pooled_cv([[[1.0, 2.0]]])


def test_standard_errors() -> None:
    assert stats.combined_cv(0.03, 0.04, 1, 1) == pytest.approx(0.05)
    assert stats.combined_cv(0.03, 0.04, 4, 16) == pytest.approx(math.hypot(0.015, 0.01))
    assert stats.relative_spread(RUN) == pytest.approx(scipy_stats.sem(logs(RUN)))
    assert stats.relative_spread([[1.0, 2.0]]) == 0.0
    with pytest.raises(ValueError, match="launch"):
        stats.combined_cv(0.01, 0.01, 2, 1)


def test_a_ratio_of_three_launches_each_is_welchs() -> None:
    other = [[90.0], [80.0], [85.0], [88.0]]
    found = stats.ratio_ci(RUN, other)
    low, high = scipy_stats.ttest_ind(logs(RUN), logs(other), equal_var=False).confidence_interval(
        0.95
    )
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))


def test_a_ratio_of_two_launches_shares_the_noise() -> None:
    other = [[90.0], [80.0]]
    found = stats.ratio_ci(RUN, other)
    low, high = scipy_stats.ttest_ind(logs(RUN), logs(other)).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert "shared" in found.method


def test_a_paired_ratio_removes_what_both_share() -> None:
    drift = [1.0, 0.9, 1.2]
    a = [[100 * d] for d in drift]
    b = [[50.0 * d * e] for d, e in zip(drift, (1.0, 1.001, 0.999), strict=True)]
    paired = stats.ratio_ci(a, b, paired=True)
    assert paired.low < 2.0 < paired.high
    assert paired.relative_half_width < 0.01
    assert stats.ratio_ci(a, b).relative_half_width > 0.2
    low, high = scipy_stats.ttest_rel(logs(a), logs(b)).confidence_interval(0.95)
    assert (paired.low, paired.high) == pytest.approx((math.exp(low), math.exp(high)))


def test_pairs_need_partners_and_no_noise_of_single_launches() -> None:
    with pytest.raises(ValueError, match="as many"):
        stats.ratio_ci(RUN, RUN[:2], paired=True)
    with pytest.raises(ValueError, match="pairs"):
        stats.ratio_ci(RUN, RUN, paired=True, beside=[stats.Noise(0.1, 3)])
    assert stats.ratio_ci(RUN[:1], RUN[:1], paired=True).high == math.inf


def test_noise_beside_brings_degrees_of_freedom_but_hides_no_noisy_side() -> None:
    quiet = stats.Noise(1e-6, 8)
    reference = stats.Reference(100.0, 5, 15, 0.01, 0.01)
    alone = stats.ratio_to_reference(RUN, reference)
    shared = stats.ratio_to_reference(RUN, reference, beside=[quiet])
    assert shared.df == 2 + 4 + 8
    own = stats.noise_of(RUN)
    assert own is not None
    assert shared.log_error**2 >= own.variance / 3
    assert shared.relative_half_width < alone.relative_half_width
    loud = stats.ratio_to_reference(RUN, reference, beside=[stats.Noise(0.1, 8)])
    assert loud.relative_half_width > alone.relative_half_width


def test_the_reference_brings_its_own_noise() -> None:
    exact = stats.ratio_to_reference(RUN, 100.0)
    known = stats.ratio_to_reference(RUN, 100.0, 0.02)
    assert exact.log_error == pytest.approx(stats.hierarchical_ci(RUN).log_error)
    assert known.log_error == pytest.approx(math.hypot(exact.log_error, 0.02))
    assert known.df > exact.df
    measured = stats.ratio_to_reference(RUN, stats.Reference(100.0, 4, 16, 0.02, 0.04))
    own = stats.noise_of(RUN)
    assert own is not None
    # A launch of the reference has the variance 0.02² + 0.04²/4.
    assert measured.log_error**2 == pytest.approx(own.variance / 3 + 0.0008 / 4)


def test_a_reference_of_one_launch_is_as_uncertain_as_a_launch_of_the_run() -> None:
    found = stats.ratio_to_reference(RUN, stats.Reference(100.0, 1, 3))
    own = stats.noise_of(RUN)
    assert own is not None
    assert found.log_error**2 == pytest.approx(own.variance * (1 / 3 + 1))
    # One sweep instead of three is noisier by two thirds of the sweep variance.
    single = stats.ratio_to_reference(RUN, stats.Reference(100.0))
    _, sweep = stats.variance_components(RUN)
    assert single.log_error**2 == pytest.approx(found.log_error**2 + sweep**2 * 2 / 3)
    stated = stats.ratio_to_reference(RUN, stats.Reference(100.0, sweep_cv=0.05))
    assert stated.log_error > single.log_error


def test_one_launch_of_a_reference_tells_no_noise_whatever_it_claims() -> None:
    assert stats.Reference(100.0, 1, 3, 0.01, 0.01).noise is None
    assert stats.Reference(100.0, 2, 6).noise is None
    assert stats.Reference(100.0, 2, 6, 0.03, 0.04).noise == stats.Noise(
        pytest.approx(0.03**2 + 0.04**2 / 3), 1
    )


def test_one_launch_is_judged_by_the_references_noise_or_not_at_all() -> None:
    known = stats.ratio_to_reference(RUN[:1], stats.Reference(100.0, 5, 15, 0.01, 0.0))
    half = scipy_stats.t.ppf(0.975, 4) * 0.01 * math.sqrt(1 + 1 / 5)
    assert known.high / known.value == pytest.approx(math.exp(half))
    for reference in (stats.Reference(100.0), stats.Reference(100.0, 5, 15), 100.0):
        assert stats.ratio_to_reference(RUN[:1], reference).high == math.inf
    assert stats.ratio_to_reference(RUN[:1], 100.0, 0.01).high == math.inf


@pytest.mark.parametrize(
    "fields",
    [
        (0.0,),
        (-1.0,),
        (math.nan,),
        (math.inf,),
        (1.0, 0, 1),
        (1.0, 3, 2),
        (1.0, 2, 2, -0.1),
        (1.0, 2, 2, 0.1, math.nan),
    ],
)
def test_a_reference_that_cannot_be_is_refused(fields: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"reference|coefficient"):
        stats.Reference(*fields)  # type: ignore[arg-type]


def test_an_error_that_cannot_be_is_refused() -> None:
    for error in (-0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match="error"):
            stats.ratio_to_reference(RUN, 100.0, error)
    with pytest.raises(ValueError, match="positive"):
        stats.ratio_to_reference(RUN, 0.0)


def test_identical_launches_are_exact_and_wild_ones_do_not_overflow() -> None:
    same = stats.hierarchical_ci([[5.0, 5.0], [5.0, 5.0]])
    assert (same.low, same.high) == pytest.approx((5.0, 5.0))
    assert stats.ratio_to_reference([[5.0], [5.0]], 5.0).half_width == pytest.approx(0)
    known = stats.ratio_to_reference([[5.0], [5.0]], 5.0, 0.01)
    assert known.high == pytest.approx(math.exp(0.01 * scipy_stats.norm.ppf(0.975)))
    wild = stats.hierarchical_ci([[1e-200], [1e200]])
    assert (wild.low, wild.high) == (0.0, math.inf)


@given(ragged, ragged, references, noises, st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_every_interval_holds_its_estimate(
    a: list[list[float]],
    b: list[list[float]],
    reference: stats.Reference | float,
    beside: tuple[stats.Noise, ...],
    confidence: float,
) -> None:
    for statistic in ("mean", "median"):
        found = [
            stats.hierarchical_ci(a, statistic, confidence, beside=beside),
            stats.ratio_ci(a, b, confidence, statistic=statistic, beside=beside),
            stats.ratio_to_reference(
                a, reference, confidence=confidence, statistic=statistic, beside=beside
            ),
        ]
        for e in found:
            assert 0 <= e.low <= e.value <= e.high
            assert e.confidence == confidence
            assert not math.isnan(e.half_width)


@given(nested, nested, references)
def test_more_confidence_is_wider(
    a: list[list[float]], b: list[list[float]], reference: stats.Reference | float
) -> None:
    for e in (
        [stats.hierarchical_ci(a, confidence=c) for c in (0.5, 0.9, 0.99)],
        [stats.ratio_ci(a, b, c) for c in (0.5, 0.9, 0.99)],
        [stats.ratio_to_reference(a, reference, confidence=c) for c in (0.5, 0.9, 0.99)],
    ):
        widths = [x.half_width for x in e]
        assert widths == sorted(widths)


@given(ragged, ragged, st.randoms(use_true_random=False))
def test_order_of_launches_and_sweeps_does_not_matter(
    a: list[list[float]], b: list[list[float]], order: random.Random
) -> None:
    mixed = [g.copy() for g in a]
    for g in mixed:
        order.shuffle(g)
    order.shuffle(mixed)
    assert stats.hierarchical_ci(mixed) == stats.hierarchical_ci(a)
    assert stats.ratio_ci(mixed, b) == stats.ratio_ci(a, b)
    assert stats.noise_of(mixed) == stats.noise_of(a)
    assert stats.variance_components(mixed) == pytest.approx(
        stats.variance_components(a), abs=1e-9, nan_ok=True
    )
    one, two = stats.ratio_to_reference(mixed, 100.0), stats.ratio_to_reference(a, 100.0)
    assert one == two


def same(a: stats.Estimate, b: stats.Estimate, factor: float = 1.0) -> bool:
    return (a.value * factor, a.low * factor, a.high * factor) == pytest.approx(
        (b.value, b.low, b.high), rel=1e-6
    )


def scaled(groups: list[list[float]], factor: float) -> list[list[float]]:
    return [[x * factor for x in g] for g in groups]


@given(nested, nested, st.floats(1e-3, 1e3))
def test_units_do_not_matter(a: list[list[float]], b: list[list[float]], k: float) -> None:
    assert same(stats.hierarchical_ci(a), stats.hierarchical_ci(scaled(a, k)), k)
    assert same(stats.ratio_ci(a, b), stats.ratio_ci(scaled(a, k), scaled(b, k)))
    assert same(stats.ratio_ci(a, b), stats.ratio_ci(scaled(a, k), b), k)
    reference = stats.Reference(100.0, 3, 9, 0.02, 0.01)
    big = stats.Reference(100.0 * k, 3, 9, 0.02, 0.01)
    assert same(stats.ratio_to_reference(a, reference), stats.ratio_to_reference(scaled(a, k), big))


@given(nested, nested)
def test_the_inverse_ratio_has_the_inverse_interval(
    a: list[list[float]], b: list[list[float]]
) -> None:
    one, other = stats.ratio_ci(a, b), stats.ratio_ci(b, a)
    assert one.value * other.value == pytest.approx(1)
    if math.isfinite(one.high):
        assert one.low * other.high == pytest.approx(1, rel=1e-6)
