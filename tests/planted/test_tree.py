"""The plan's model of the draft tree against the engine's steps on the weights' own logits."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from kit.planted import PairSpec, Plan
from kit.planted.spec import GAPS
from kit.planted.tree import accepted_drafts
from kit.planted.weights import Weights

from . import engine_tree
from .conftest import small

SHAPES = [
    (1, 3, 4),
    (4, 3, 8),
    (4, 3, 16),
    (2, 3, 5),
    (3, 2, 5),
    (8, 2, 12),
    (4, 1, 3),
    (2, 3, 10),
]


def _draft_probs(spec: PairSpec, plan: Plan) -> torch.Tensor:
    """What an ideal draft layer, one that outputs the token's embedding, gives with the head."""
    weights = Weights(plan, torch.device("cpu"))
    head = weights.draft_head().to(torch.bfloat16).float()
    logits = (weights.embedding.to(torch.bfloat16) @ head.to(torch.bfloat16).T).float()
    return torch.softmax(logits, dim=-1)


@pytest.mark.parametrize(("p", "q"), [(0.75, 0.6), (0.2, 0.9), (0.0, 1.0), (0.5, 0.0)])
@pytest.mark.parametrize("shape", SHAPES)
def test_accepted_drafts_are_the_engines(p: float, q: float, shape: tuple[int, int, int]) -> None:
    spec = small(hidden=512, vocab=181, p=p, q=q)
    plan = Plan.build(spec)
    assert plan.tree_margin(*shape) > 0.5
    probs = _draft_probs(spec, plan)
    planned = plan.accepted(*shape)
    for token in plan.cycle.tolist():
        tree = engine_tree.grow(probs, token, *shape)
        got = engine_tree.accepted(tree, lambda t: int(plan.following[t]), shape[1])
        assert got == planned[token], (token, tree)


def test_verify_steps_follow_the_engine_through_whole_requests() -> None:
    spec = small(vocab=181, p=0.6, q=0.8)
    plan, shape = Plan.build(spec), (4, 3, 8)
    probs = _draft_probs(spec, plan)
    for seed in range(12):
        prompt = plan.prompt(seed, 6)
        output = plan.continuation(prompt, 60)
        done, count = 1, 0
        while done < 50:
            tree = engine_tree.grow(probs, output[done - 1], *shape)
            done += 1 + engine_tree.accepted(tree, lambda t: int(plan.following[t]), shape[1])
            count += 1
        assert plan.verify_steps(prompt, 50, *shape) == count


def test_deep_trees_agree_wherever_the_margin_says_so() -> None:
    spec = small(vocab=181, p=0.5, q=0.6)
    plan, shape = Plan.build(spec), (4, 5, 16)
    probs = _draft_probs(spec, plan)
    planned, margin = plan._tree(*shape)
    decided = [token for token in plan.cycle.tolist() if margin[token] > 0.2]
    assert len(decided) > 0.6 * plan.cycle.size
    for token in decided:
        tree = engine_tree.grow(probs, token, *shape)
        assert (
            engine_tree.accepted(tree, lambda t: int(plan.following[t]), shape[1]) == planned[token]
        )


def test_one_gap_for_all_classes_would_be_a_close_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why there are three: the margin is near the rounding of bfloat16 logits with one."""
    plan = Plan.build(small(hidden=1024, vocab=2000, p=0.5, q=0.9))
    assert plan.tree_margin(4, 3, 8) > 0.69
    monkeypatch.setattr("kit.planted.tree.GAPS", (1.3125,) * 3)
    monkeypatch.setattr("kit.planted.tree.FIRST_COST", (math.log1p(1e-3 + math.exp(-1.3125)),) * 3)
    _, margin = accepted_drafts(plan.first, plan.second, plan.following, plan.token_class, 4, 3, 8)
    assert margin[plan.cycle].min() < 0.25


def _least_distance(gaps: tuple[float, ...], steps: int) -> float:
    """Smallest difference in log score of two nodes that part at some step, whatever tokens follow.

    A path is a string of choices (0 first, 1 second). A first choice costs log(1 + e^-gap) if its
    token has a second one and nothing otherwise; after the paths part their tokens differ, so both
    are possible.
    """
    least = math.inf
    for start in range(len(gaps)):
        gap = [gaps[(start + step) % len(gaps)] for step in range(steps)]
        shared = [math.log1p(math.exp(-g)) for g in gap]
        for fork in range(steps):
            tails = []
            for length in range(steps - fork):
                for choices in itertools.product((0, 1), repeat=length):
                    at = range(fork + 1, fork + 1 + length)
                    sure = sum((gap[s] + shared[s]) * c for s, c in zip(at, choices, strict=True))
                    open_ = sum(shared[s] * (1 - c) for s, c in zip(at, choices, strict=True))
                    tails.append((sure, sure + open_))
            for (low_a, high_a), (low_b, high_b) in itertools.product(tails, repeat=2):
                low, high = gap[fork] + low_b - high_a, gap[fork] + high_b - low_a
                least = min(least, 0.0 if low <= 0 <= high else min(abs(low), abs(high)))
    return least


def test_gaps_keep_all_nodes_of_a_three_step_tree_apart() -> None:
    assert _least_distance(GAPS, 3) > 0.69
    assert _least_distance((1.3125,) * 3, 3) == 0


def test_gaps_are_exact_in_bfloat16() -> None:
    for gap in GAPS:
        assert float(torch.tensor(15.0 - gap).to(torch.bfloat16)) == 15.0 - gap


def test_the_margin_is_the_distance_to_the_nearest_rival() -> None:
    """Two tokens whose second choices compete for one seat, by hand."""
    # 0 → first 1 (wrong), second 2 (right); 1 → first 3; 2 → first 4 (wrong).
    first = np.array([1, 3, 4, 5, 5, 5])
    second = np.array([2, -1, -1, -1, -1, -1])
    following = np.array([2, 5, 3, 5, 5, 5])
    classes = np.zeros(6, dtype=np.int64)
    # Seats for [1, 3]: the right token 2 is out; it would need to beat 3, 0.875 better up to
    # rounding.
    got, margin = accepted_drafts(first, second, following, classes, 2, 2, 3)
    assert got[0] == 0
    assert margin[0] == pytest.approx(GAPS[0], abs=0.01)
    # One seat more and it is in; only its own child is left outside, which cannot overtake it.
    got, margin = accepted_drafts(first, second, following, classes, 2, 2, 4)
    assert got[0] == 1
    assert margin[0] == math.inf
    # A noise token as good as it would take the seat away.
    _, margin = accepted_drafts(first, second, following, classes, 2, 2, 4, noise_cost=2.0)
    assert margin[0] == pytest.approx(2.0 - GAPS[0] - math.log1p(math.exp(-GAPS[0])), abs=0.01)
