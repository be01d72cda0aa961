from __future__ import annotations

import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.sglang_plugin.attention import (
    Metadata,
    attend,
    decode_metadata,
    draft_decode_metadata,
    extend_metadata,
    verify_metadata,
)
from tests.sglang_plugin.reference import attention

HEADS, KV_HEADS, SIZE, CONTEXT, SLOTS = 4, 2, 8, 40, 400


class Cache:
    """A KV cache and a table with slots in no order; behind each request's tokens the table holds rubbish."""

    def __init__(self, batch: int, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        rng = random.Random(seed)
        self.keys, self.values = (
            torch.randn(SLOTS, KV_HEADS, SIZE, generator=self.generator) for _ in range(2)
        )
        self.pool = torch.randint(
            0, SLOTS, (batch + 2, CONTEXT), generator=self.generator, dtype=torch.int32
        )
        self.req = torch.tensor(rng.sample(range(batch + 2), batch))

    def slots(self, b: int, columns: list[int]) -> list[int]:
        return [int(self.pool[int(self.req[b]), c]) for c in columns]

    def check(self, meta: Metadata, seen: list[list[int]]) -> None:
        q = torch.randn(len(seen), HEADS, SIZE, generator=self.generator)
        got = attend(q, self.keys, self.values, meta, 0.3)
        want = attention(q, self.keys, self.values, seen, 0.3)
        torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-4)


lengths = st.lists(st.integers(1, 20), min_size=1, max_size=5)
seeds = st.integers(0, 10**6)


@given(lengths, seeds)
def test_decode_sees_the_whole_sequence(lens: list[int], seed: int) -> None:
    cache = Cache(len(lens), seed)
    meta = decode_metadata(cache.pool, cache.req, torch.tensor(lens))
    cache.check(meta, [cache.slots(b, list(range(n))) for b, n in enumerate(lens)])


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(1, 6)), min_size=1, max_size=5), seeds)
def test_extend_is_causal_behind_the_prefix(requests: list[tuple[int, int]], seed: int) -> None:
    cache = Cache(len(requests), seed)
    new = torch.tensor([n for _, n in requests])
    lens = torch.tensor([p + n for p, n in requests])
    meta = extend_metadata(cache.pool, cache.req, lens, new)
    seen = [
        cache.slots(b, list(range(p + i + 1)))
        for b, (p, n) in enumerate(requests)
        for i in range(n)
    ]
    cache.check(meta, seen)


@settings(max_examples=60)
@given(lengths, st.integers(1, 6), seeds)
def test_verify_follows_the_tree_mask(lens: list[int], n: int, seed: int) -> None:
    cache = Cache(len(lens), seed)
    rng = random.Random(seed)
    flat: list[bool] = []
    seen = []
    for b, length in enumerate(lens):
        for i in range(n):
            tree = [j == i or rng.random() < 0.4 for j in range(n)]
            flat += [True] * length + tree
            seen.append(
                cache.slots(b, [*range(length), *(length + j for j in range(n) if tree[j])])
            )
    meta = verify_metadata(cache.pool, cache.req, torch.tensor(lens), torch.tensor(flat), n)
    cache.check(meta, seen)


@given(lengths, st.integers(1, 4), st.integers(1, 4), seeds, st.data())
def test_draft_step_sees_the_prefix_and_its_own_branch(
    lens: list[int], topk: int, steps: int, seed: int, data: st.DataObject
) -> None:
    step = data.draw(st.integers(0, steps - 1))
    cache = Cache(len(lens), seed)
    meta = draft_decode_metadata(cache.pool, cache.req, torch.tensor(lens), topk, steps, step)
    seen = [
        cache.slots(b, [*range(n), *range(n + t * steps, n + t * steps + step + 1)])
        for b, n in enumerate(lens)
        for t in range(topk)
    ]
    cache.check(meta, seen)
