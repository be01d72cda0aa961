from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kit.sglang_plugin.tree_kernels import (
    FULL_MASK,
    QLEN_ONLY,
    build_tree_kernel_efficient,
    tree_parents,
    verify_tree_greedy,
)
from tests.sglang_plugin.reference import Tree, greedy_path, tree_of


def random_candidates(
    rng: random.Random, topk: int, depth: int, n: int, whole: bool
) -> tuple[list[int], list[int]]:
    """Return parents and chosen candidates as EAGLE makes them.

    Candidates are numbered level by level: topk grown from the root, then topk × topk a level, each group of topk
    grown from one candidate of the level before. ``whole`` keeps every chosen node's parent chosen too, which real
    scores do unless they tie.
    """
    parents = [-1]
    level = list(range(topk))
    count = topk
    for _ in range(depth - 1):
        grown = rng.sample(level, topk)
        parents += grown
        level = list(range(count, count + topk * topk))
        count += topk * topk
    parent_of = {c: (None if c // topk == 0 else parents[c // topk]) for c in range(count)}
    if not whole:
        return parents, sorted(rng.sample(range(count), n - 1))
    chosen: set[int] = set()
    while len(chosen) < n - 1:
        fit = [
            c
            for c in range(count)
            if c not in chosen and (parent_of[c] is None or parent_of[c] in chosen)
        ]
        chosen.add(rng.choice(fit))
    return parents, sorted(chosen)


class Built:
    """Trees of a batch, built by the kernel."""

    def __init__(
        self,
        batch: list[tuple[list[int], list[int]]],
        lens: list[int],
        topk: int,
        depth: int,
        mode: int = FULL_MASK,
    ) -> None:
        n = len(batch[0][1]) + 1
        self.n, self.lens = n, lens
        widths = [length + n for length in lens] if mode == FULL_MASK else [n] * len(lens)
        self.mask = torch.ones(n * sum(widths), dtype=torch.bool)
        self.positions = torch.empty(n * len(lens), dtype=torch.long)
        self.index, self.next, self.sibling = (
            torch.full((len(lens), n), -1, dtype=torch.long) for _ in range(3)
        )
        build_tree_kernel_efficient(
            torch.tensor([p for p, _ in batch]),
            torch.tensor([s for _, s in batch]),
            torch.tensor(lens),
            self.mask,
            self.positions,
            self.index,
            self.next,
            self.sibling,
            topk,
            depth,
            n,
            mode,
        )
        self.widths = widths

    def row_mask(self, b: int) -> Tensor:
        start = self.n * sum(self.widths[:b])
        return self.mask[start : start + self.n * self.widths[b]].view(self.n, self.widths[b])

    def children(self, b: int, node: int) -> list[int]:
        found, c = [], int(self.next[b, node])
        while c >= 0:
            found.append(c)
            c = int(self.sibling[b, c])
        return found


shapes = st.tuples(
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(2, 12),
    st.integers(1, 5),
    st.booleans(),
    st.integers(0, 10**6),
)


def make(
    shape: tuple[int, int, int, int, bool, int], mode: int = FULL_MASK
) -> tuple[Built, list[Tree], random.Random, int]:
    topk, depth, n, batch, whole, seed = shape
    rng = random.Random(seed)
    n = min(n, 1 + topk + (depth - 1) * topk * topk)
    candidates = [random_candidates(rng, topk, depth, n, whole) for _ in range(batch)]
    lens = [rng.randint(1, 9) for _ in range(batch)]
    return (
        Built(candidates, lens, topk, depth, mode),
        [tree_of(p, s, topk) for p, s in candidates],
        rng,
        depth,
    )


@settings(max_examples=200, deadline=None)
@given(shapes)
def test_built_trees_are_those_of_the_plain_reading(
    shape: tuple[int, int, int, int, bool, int],
) -> None:
    built, trees, _, _ = make(shape)
    for b, (tree, length) in enumerate(zip(trees, built.lens, strict=True)):
        mask = built.row_mask(b)
        assert bool(mask[:, :length].all())
        for i in range(built.n):
            assert set(mask[i, length:].nonzero()[:, 0].tolist()) == tree.ancestors[i]
            assert int(built.positions[b * built.n + i]) == length + tree.depth[i]
            assert built.children(b, i) == tree.children[i]
        assert built.index[b].tolist() == list(range(b * built.n, (b + 1) * built.n))


@settings(max_examples=50, deadline=None)
@given(shapes)
def test_qlen_mask_holds_the_tree_part_only(shape: tuple[int, int, int, int, bool, int]) -> None:
    built, trees, _, _ = make(shape, QLEN_ONLY)
    for b, tree in enumerate(trees):
        for i in range(built.n):
            assert set(built.row_mask(b)[i].nonzero()[:, 0].tolist()) == tree.ancestors[i]


def test_bit_packed_mask_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="bit-packed"):
        Built([([-1], [0])], [3], 1, 1, mode=2)


def test_a_node_whose_parent_was_dropped_by_a_tie_is_nobodys_child() -> None:
    # topk 2, depth 2: candidate 3 grew from candidate 0, which was not chosen.
    parents = tree_parents(torch.tensor([[-1, 0, 1]]), torch.tensor([[1, 3]]), 2)
    assert parents.tolist() == [[-1, 0, -1]]
    built = Built([([-1, 0, 1], [1, 3])], [4], 2, 2)
    assert built.children(0, 0) == [1]
    assert built.children(0, 1) == []


@settings(max_examples=200, deadline=None)
@given(shapes, st.integers(1, 3), st.integers(0, 10**6))
def test_greedy_walk_is_the_plain_one(
    shape: tuple[int, int, int, int, bool, int], vocab: int, seed: int
) -> None:
    built, trees, _, depth = make(shape)
    batch, n, steps = len(trees), built.n, depth + 1
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, vocab, (batch, n), generator=generator)
    target = torch.randint(0, vocab, (batch, n), generator=generator)
    predicts = torch.full((batch * n,), -7, dtype=torch.int32)
    accept_index = torch.full((batch, steps), -1, dtype=torch.int32)
    accepted = torch.full((batch,), -1, dtype=torch.int32)
    verify_tree_greedy(
        predicts, accept_index, accepted, tokens, built.index, built.next, built.sibling, target
    )
    for b, tree in enumerate(trees):
        path = greedy_path(tree, tokens[b].tolist(), target[b].tolist(), steps)
        assert accept_index[b].tolist() == [b * n + i for i in path] + [-1] * (steps - len(path))
        assert int(accepted[b]) == len(path) - 1
        for i in range(n):
            want = int(target[b, i]) if i in path else -7
            assert int(predicts[b * n + i]) == want
