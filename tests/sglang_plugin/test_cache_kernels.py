from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kit.sglang_plugin import cache_kernels as k
from kit.sglang_plugin.cache_kernels import Launchable, ragged

CONTEXT = 24
batches = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), min_size=1, max_size=6)
seeds = st.integers(0, 10**6)


def pool_for(batch: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a table of distinct slots and the rows that the requests use, in no order."""
    rows = random.Random(seed).sample(range(batch + 3), batch)
    table = torch.arange((batch + 3) * CONTEXT, dtype=torch.int32).view(batch + 3, CONTEXT)
    return table, torch.tensor(rows)


@given(batches)
def test_ragged(ranges: list[tuple[int, int]]) -> None:
    start = torch.tensor([s for s, _ in ranges])
    rows, columns = ragged(start, start + torch.tensor([n for _, n in ranges]))
    want = [(i, c) for i, (s, n) in enumerate(ranges) for c in range(s, s + n)]
    assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == want


@given(batches, seeds)
def test_slots_are_written_and_read_back_by_request(
    ranges: list[tuple[int, int]], seed: int
) -> None:
    table, rows = pool_for(len(ranges), seed)
    before = table.clone()
    start = torch.tensor([s for s, _ in ranges])
    end = start + torch.tensor([n for _, n in ranges])
    total = int((end - start).sum())
    slots = torch.arange(1000, 1000 + total)
    Launchable(k.assign_req_to_token_pool)[(len(ranges),)](
        rows, table, start, end, slots, CONTEXT, 8
    )
    want, at = before, 0
    for row, (s, n) in zip(rows.tolist(), ranges, strict=True):
        for c in range(s, s + n):
            want[row, c] = 1000 + at
            at += 1
    assert torch.equal(table, want)
    out = torch.full((total + 2,), -1, dtype=torch.int64)
    Launchable(k.assign_extend_cache_locs)[(len(ranges),)](rows, table, start, end, out, CONTEXT, 8)
    assert out.tolist() == [*slots.tolist(), -1, -1]


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=5),
    st.integers(1, 3),
    st.integers(1, 3),
    seeds,
)
def test_draft_slots(lens: list[int], topk: int, steps: int, seed: int) -> None:
    batch, count = len(lens), topk * steps
    table, rows = pool_for(batch, seed)
    seq = torch.tensor(lens)
    slots = torch.arange(500, 500 + batch * count)
    unused = torch.empty(0)
    Launchable(k.assign_draft_cache_locs)[(batch,)](
        rows,
        table,
        seq,
        unused,
        unused,
        slots,
        unused,
        unused,
        unused,
        0,
        CONTEXT,
        topk,
        steps,
        1,
        8,
        8,
    )
    for i, (row, length) in enumerate(zip(rows.tolist(), lens, strict=True)):
        assert (
            table[row, length : length + count].tolist()
            == slots[i * count : (i + 1) * count].tolist()
        )
    out = torch.empty(batch * count, dtype=torch.int64)
    Launchable(k.assign_draft_cache_locs_page_size_1)[(batch,)](
        rows, table, seq, out, CONTEXT, topk, steps
    )
    assert torch.equal(out, slots)


def test_larger_pages_are_refused() -> None:
    none = torch.empty(0)
    with pytest.raises(NotImplementedError, match="page size 1"):
        k.assign_draft_cache_locs(
            1, none, none, none, none, none, none, none, none, none, 0, 9, 2, 3, 16
        )


@given(st.lists(st.tuples(st.integers(4, 12), st.integers(1, 4)), min_size=1, max_size=5))
def test_positions_and_bonus_of_accepted_tokens(requests: list[tuple[int, int]]) -> None:
    seq = torch.tensor([s for s, _ in requests])
    accepted = torch.tensor([a for _, a in requests], dtype=torch.int32)
    tokens = torch.arange(int(accepted.sum())) + 70
    positions = torch.full((tokens.numel() + 1,), -1)
    bonus = torch.full((len(requests),), -1, dtype=torch.int32)
    Launchable(k.create_extend_after_decode_spec_info)[(len(requests),)](
        tokens, seq, accepted, positions, bonus, 8
    )
    want_positions = [p for s, a in requests for p in range(s - a, s)]
    ends = torch.tensor([a for _, a in requests]).cumsum(0) - 1
    assert positions.tolist() == [*want_positions, -1]
    assert bonus.tolist() == tokens[ends].tolist()


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_bonus_tokens_of_padded_rows(accepted: list[int]) -> None:
    tokens = torch.arange(len(accepted) * 4).view(len(accepted), 4)
    bonus = torch.empty(len(accepted), dtype=torch.int32)
    Launchable(k.fill_bonus_tokens)[(len(accepted),)](tokens, torch.tensor(accepted), bonus, 4)
    assert bonus.tolist() == [4 * i + a - 1 for i, a in enumerate(accepted)]


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_accepted_slots_are_packed(kept: list[bool]) -> None:
    index = torch.tensor([i if keep else -1 for i, keep in enumerate(kept)])
    slots = torch.arange(len(kept)) + 100
    out = torch.zeros(len(kept), dtype=torch.int64)
    Launchable(k.fill_accepted_out_cache_loc)[(len(kept),)](index, slots, out, 16)
    want = [100 + i for i, keep in enumerate(kept) if keep]
    assert out.tolist() == want + [0] * (len(kept) - len(want))
