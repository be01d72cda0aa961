from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kit.sglang_plugin.sampling_kernels import (
    top_k_renorm_prob,
    top_p_renorm_prob,
    tree_speculative_sampling_target_only,
)

rows_of_probs = st.integers(0, 10**6).map(
    lambda seed: torch.softmax(
        2 * torch.randn(3, 7, generator=torch.Generator().manual_seed(seed)), -1
    )
)


@given(rows_of_probs, st.lists(st.integers(1, 9), min_size=3, max_size=3))
def test_top_k(probs: torch.Tensor, ks: list[int]) -> None:
    out = top_k_renorm_prob(probs, torch.tensor(ks))
    for p, k, got in zip(probs, ks, out, strict=True):
        keep = sorted(range(7), key=lambda i: -float(p[i]))[:k]
        want = torch.tensor([float(p[i]) if i in keep else 0.0 for i in range(7)])
        torch.testing.assert_close(got, want / want.sum())


@given(rows_of_probs, st.lists(st.floats(0.05, 1), min_size=3, max_size=3))
def test_top_p(probs: torch.Tensor, marks: list[float]) -> None:
    out = top_p_renorm_prob(probs, torch.tensor(marks))
    for p, mark, got in zip(probs, marks, out, strict=True):
        mass, keep = 0.0, []
        for i in sorted(range(7), key=lambda i: -float(p[i])):
            if mass >= mark - 1e-7:
                break
            keep.append(i)
            mass += float(p[i])
        want = torch.tensor([float(p[i]) if i in keep else 0.0 for i in range(7)])
        torch.testing.assert_close(got, want / want.sum(), atol=1e-5, rtol=1e-5)


def test_scalars_apply_to_every_row() -> None:
    probs = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]])
    assert top_k_renorm_prob(probs, 1).tolist() == [[1, 0, 0], [0, 0, 1]]
    torch.testing.assert_close(top_p_renorm_prob(probs, 1.0), probs)


class Sampler:
    """Samples many times from one tree: root with children 1 (token 0) and 2 (token 1); 3 (token 2) below 1."""

    tokens = torch.tensor([3, 0, 1, 2])
    next_token = torch.tensor([1, 3, -1, -1])
    sibling = torch.tensor([-1, 2, -1, -1])

    def __init__(self, target: torch.Tensor, count: int, seed: int, steps: int = 3) -> None:
        n, vocab = target.shape
        generator = torch.Generator().manual_seed(seed)
        self.predicts = torch.full((count * n,), -1, dtype=torch.int32)
        self.index = torch.full((count, steps), -1, dtype=torch.int32)
        self.accepted = torch.full((count,), -1, dtype=torch.int32)
        tree_speculative_sampling_target_only(
            self.predicts,
            self.index,
            self.accepted,
            self.tokens.expand(count, n),
            torch.arange(count * n).view(count, n),
            self.next_token.expand(count, n),
            self.sibling.expand(count, n),
            torch.rand(count, n, generator=generator),
            torch.rand(count, generator=generator),
            target.expand(count, n, vocab).contiguous(),
            torch.zeros(count, n, vocab),
        )

    def outputs(self, place: int) -> list[int]:
        """Return the token at output ``place`` of every sample that got that far."""
        rows = self.index[:, place]
        return self.predicts[rows[rows >= 0].long()].tolist()


def chi_square(observed: list[int], probs: torch.Tensor) -> float:
    counts = [observed.count(i) for i in range(len(probs))]
    whole = float(probs.double().sum())
    used = [
        (c, float(p) / whole * len(observed)) for c, p in zip(counts, probs, strict=True) if p > 0
    ]
    assert sum(c for c, _ in used) == len(observed), "a token of zero probability was drawn"
    return float(stats.chisquare([c for c, _ in used], [e for _, e in used]).pvalue)


TARGET = torch.tensor(
    [[0.3, 0.25, 0.05, 0.4], [0.1, 0.2, 0.6, 0.1], [0.25, 0.25, 0.25, 0.25], [0.7, 0.1, 0.1, 0.1]]
)


def test_first_token_is_distributed_as_the_target() -> None:
    sampler = Sampler(TARGET, 20_000, seed=1)
    assert chi_square(sampler.outputs(0), TARGET[0]) > 1e-3


def test_second_token_given_the_first_is_too() -> None:
    sampler = Sampler(TARGET, 40_000, seed=2)
    first = sampler.predicts.view(-1, 4)[:, 0]
    for token, node in ((0, 1), (1, 2)):
        rows = (first == token) & (sampler.index[:, 1] >= 0)
        second = sampler.predicts[sampler.index[rows, 1].long()].tolist()
        assert len(second) > 5_000
        assert chi_square(second, TARGET[node]) > 1e-3


def test_a_biased_walk_would_be_noticed() -> None:
    wrong = TARGET[0].clone()
    wrong[0], wrong[3] = 0.35, 0.35
    assert chi_square(Sampler(TARGET, 20_000, seed=1).outputs(0), wrong) < 1e-6


def test_a_sure_target_is_followed_to_the_end() -> None:
    sure = torch.eye(4)[[0, 2, 3, 1]]
    sampler = Sampler(sure, 50, seed=3)
    assert sampler.accepted.tolist() == [2] * 50
    assert sampler.predicts.view(50, 4)[:, [0, 1, 3]].tolist() == [[0, 2, 1]] * 50


def test_zero_coins_never_draw_an_impossible_token() -> None:
    target = torch.tensor([[0.0, 0.0, 0.5, 0.5]]).repeat(4, 1)
    predicts = torch.full((4,), -1, dtype=torch.int32)
    index = torch.full((1, 3), -1, dtype=torch.int32)
    tree_speculative_sampling_target_only(
        predicts,
        index,
        torch.empty(1, dtype=torch.int32),
        Sampler.tokens[None],
        torch.arange(4)[None],
        Sampler.next_token[None],
        Sampler.sibling[None],
        torch.ones(1, 4),
        torch.zeros(1),
        target[None].clone(),
        torch.zeros(1, 4, 4),
    )
    assert int(predicts[0]) == 2


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_each_request_of_a_batch_is_walked_as_if_alone(seed: int, batch: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    target = torch.softmax(torch.randn(batch, 4, 4, generator=generator), -1)
    coins, last = torch.rand(batch, 4, generator=generator), torch.rand(batch, generator=generator)

    def walk(rows: list[int]) -> list[tuple[list[int], list[int], int]]:
        k = len(rows)
        predicts = torch.full((k * 4,), -1, dtype=torch.int32)
        index = torch.full((k, 3), -1, dtype=torch.int32)
        accepted = torch.empty(k, dtype=torch.int32)
        tree_speculative_sampling_target_only(
            predicts,
            index,
            accepted,
            Sampler.tokens.expand(k, 4),
            torch.arange(k * 4).view(k, 4),
            Sampler.next_token.expand(k, 4),
            Sampler.sibling.expand(k, 4),
            coins[rows],
            last[rows],
            target[rows].clone(),
            torch.zeros(k, 4, 4),
        )
        return [
            (
                predicts.view(k, 4)[i].tolist(),
                [x - 4 * i if x >= 0 else x for x in index[i].tolist()],
                int(accepted[i]),
            )
            for i in range(k)
        ]

    together = walk(list(range(batch)))
    assert together == [walk([i])[0] for i in range(batch)]


@pytest.mark.parametrize("threshold", [0.2, 0.5])
def test_single_threshold_accepts_likely_tokens_at_once(threshold: float) -> None:
    target = TARGET[None].clone()
    predicts = torch.full((4,), -1, dtype=torch.int32)
    index = torch.full((1, 3), -1, dtype=torch.int32)
    accepted = torch.empty(1, dtype=torch.int32)
    tree_speculative_sampling_target_only(
        predicts,
        index,
        accepted,
        Sampler.tokens[None],
        torch.arange(4)[None],
        Sampler.next_token[None],
        Sampler.sibling[None],
        torch.full((1, 4), 0.99),
        torch.tensor([0.5]),
        target,
        torch.zeros(1, 4, 4),
        threshold_single=threshold,
    )
    # At the root the likelier child has 0.3, below it the child has 0.6.
    assert int(accepted[0]) == (2 if threshold <= 0.3 else 0)
