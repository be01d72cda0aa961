from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.planted import Plan, expected_accept_length

from .conftest import small

rates = st.floats(0, 1, allow_nan=False)
SHAPES = [(4, 3, 8), (4, 3, 5), (4, 3, 16), (2, 3, 5), (3, 4, 9), (4, 2, 7), (8, 2, 6), (2, 5, 8)]


@given(rates, rates, st.integers(1, 8))
def test_a_chain_is_a_geometric_sum(p: float, q: float, steps: int) -> None:
    want = sum(p**k for k in range(steps + 1))
    assert expected_accept_length(1, steps, steps + 1, p, q) == pytest.approx(want)


@given(rates, rates, st.integers(1, 3))
@settings(deadline=None)
def test_a_tree_with_a_seat_for_every_node_counts_every_second_choice(
    p: float, q: float, steps: int
) -> None:
    topk = 2**steps
    rate = p + (1 - p) * q
    want = sum(rate**k for k in range(steps + 1))
    got = expected_accept_length(topk, steps, 2 ** (steps + 1) - 1, p, q)
    assert got == pytest.approx(want)


@given(rates, rates, st.sampled_from(SHAPES))
@settings(deadline=None, max_examples=60)
def test_a_tree_lies_between_the_chain_and_all_second_choices(
    p: float, q: float, shape: tuple[int, int, int]
) -> None:
    steps = min(shape[1], shape[2] - 1)
    chain = sum(p**k for k in range(steps + 1))
    full = sum((p + (1 - p) * q) ** k for k in range(steps + 1))
    got = expected_accept_length(*shape, p, q)
    # Few seats can cost a chain its tail only where second choices outrank it.
    room = shape[2] - 1 >= 2 ** (steps + 1) - 2 or shape[2] - 1 >= 5
    assert got <= full + 1e-9
    assert got >= (chain - 1e-9 if room and steps <= 3 else 1.0)


@given(rates, rates, st.sampled_from(SHAPES), st.integers(0, 10_000))
@settings(deadline=None, max_examples=40, derandomize=True)
def test_theory_is_what_a_long_random_cycle_gives(
    p: float, q: float, shape: tuple[int, int, int], seed: int
) -> None:
    plan = Plan.build(small(vocab=24_002, p=p, q=q, seed=seed))
    simulated = plan.cycle_accept_length(*shape)
    # About 8,000 steps or more of deviation up to 1.7: five standard errors are below 0.1.
    assert simulated == pytest.approx(expected_accept_length(*shape, plan.p, plan.q), abs=0.1)


@pytest.mark.parametrize("shape", [(1, 3, 4), *SHAPES])
def test_theory_of_the_standard_pair_is_sharp(shape: tuple[int, int, int]) -> None:
    plan = Plan.build(small(vocab=200_000, p=0.75, q=0.6))
    assert plan.cycle_accept_length(*shape) == pytest.approx(
        expected_accept_length(*shape, 0.75, 0.6), abs=0.02
    )


def test_values_of_the_kits_scenarios() -> None:
    assert expected_accept_length(1, 3, 4, 0.75, 0.6) == pytest.approx(2.734375)
    tree = expected_accept_length(4, 3, 8, 0.75, 0.6)
    assert tree == pytest.approx(3.3977, abs=5e-4)
    assert tree < 1 + 0.9 + 0.81 + 0.729


@pytest.mark.parametrize(("p", "q"), [(-0.1, 0.5), (0.5, 1.1), (float("nan"), 0.5)])
def test_rates_outside_zero_to_one_are_refused(p: float, q: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        expected_accept_length(4, 3, 8, p, q)


def test_a_tree_with_too_many_shapes_says_so_instead_of_guessing() -> None:
    with pytest.raises(ValueError, match="too many shapes"):
        expected_accept_length(8, 6, 60, 0.5, 0.5)
