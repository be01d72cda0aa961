"""Throughput taken apart."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit import stats

factors = st.builds(stats.Factors, st.floats(0.5, 300), st.floats(1, 5), st.floats(1e-3, 1))
runs = st.lists(st.lists(factors, min_size=1, max_size=3), min_size=2, max_size=4)
BASE = stats.Factors(28.0, 2.7, 0.030)


def run(
    concurrency: float = 28.0, accept: float = 2.7, step: float = 0.030
) -> list[list[stats.Factors]]:
    return [
        [stats.Factors(concurrency * a, accept * b, step * c)]
        for a, b, c in ((1.0, 1.001, 0.99), (1.002, 0.999, 1.01), (0.998, 1.0, 1.0))
    ]


@pytest.mark.parametrize(
    ("changed", "name", "effect"),
    [
        ({"concurrency": 14.0}, "effective concurrency", 0.5),
        ({"accept": 1.89}, "accept length", 0.7),
        ({"step": 0.036}, "step time", 1 / 1.2),
    ],
)
def test_the_factor_that_moved_carries_the_change(
    changed: dict[str, float], name: str, effect: float
) -> None:
    for reference in (BASE, run()):
        parts = {c.factor: c for c in stats.decompose(run(**changed), reference)}
        assert set(parts) == {"effective concurrency", "accept length", "step time"}
        moved = parts.pop(name)  # type: ignore[call-overload]
        assert moved.effect.value == pytest.approx(effect, rel=0.01)
        assert moved.effect.high < 1
        assert moved.share == pytest.approx(1, abs=0.05)
        for other in parts.values():
            assert other.effect.low < 1 < other.effect.high
            assert abs(other.share or 0) < 0.05


def test_a_slower_step_has_a_ratio_above_and_an_effect_below_one() -> None:
    step = stats.decompose(run(step=0.033), BASE)[2]
    assert step.factor == "step time"
    assert step.ratio.value == pytest.approx(1.1, rel=0.01)
    assert step.effect.value == pytest.approx(1 / 1.1, rel=0.01)
    assert step.effect.low == pytest.approx(1 / step.ratio.high)
    assert step.effect.high == pytest.approx(1 / step.ratio.low)


def test_one_launch_has_effects_without_intervals() -> None:
    for part in stats.decompose([[BASE]], BASE):
        assert part.effect.value == pytest.approx(1)
        assert part.effect.low == 0.0
        assert part.effect.high == math.inf
        assert part.share is None


@given(runs, factors)
def test_the_parts_multiply_to_the_whole(
    measured: list[list[stats.Factors]], reference: stats.Factors
) -> None:
    parts = stats.decompose(measured, reference)
    whole = stats.ratio_to_reference(
        [[f.throughput for f in g] for g in measured], reference.throughput
    )
    assert math.prod(p.effect.value for p in parts) == pytest.approx(whole.value, rel=1e-6)
    assert math.fsum(p.log_effect for p in parts) == pytest.approx(math.log(whole.value), abs=1e-6)
    shares = [p.share for p in parts]
    if None not in shares:
        assert math.fsum(s or 0 for s in shares) == pytest.approx(1)


@given(factors)
def test_the_product_is_the_throughput(one: stats.Factors) -> None:
    assert stats.product_error(one, one.throughput) == pytest.approx(0, abs=1e-9)
    assert stats.product_error(one, one.throughput / 1.02) == pytest.approx(0.02)
    assert stats.product_error(one, one.throughput * 2) == pytest.approx(-0.5)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_factor_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        stats.product_error(BASE, value)
    with pytest.raises(ValueError, match="positive"):
        stats.product_error(stats.Factors(value, 1, 1), 1.0)
    with pytest.raises(ValueError, match=r"positive|finite"):
        stats.decompose([[stats.Factors(value, 1, 1)]], BASE)
