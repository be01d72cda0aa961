"""Index kernels of SGLang's EAGLE workers, written in torch: which KV slot belongs to which token.

SGLang has these as Triton kernels launched as ``kernel[grid](*args)``; :class:`Launchable` keeps that form. Arguments
are those of the originals (SGLang 0.5.12.post1, ``speculative/spec_utils.py`` and ``speculative/eagle_info_v2.py``).
``req_to_token`` is [pool, max context]: the KV slot of each token of each request. Page size is 1 throughout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Launchable:
    """A function that can be launched like a Triton kernel: ``kernel[(programs,)](*args)``.

    Args:
        function: Called with the number of programs and then the kernel's arguments.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function
        self.__name__ = function.__name__

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        """Return the launch for a grid."""

        def launch(*args: Any, **options: Any) -> None:
            self.function(grid[0], *args, **options)

        return launch


def ragged(start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Return row and column of every element of the ranges ``start[i]..end[i]-1``, row after row.

    Args:
        start: int [rows].
        end: int [rows]; a range may be empty.

    Returns:
        Two int64 tensors [sum of lengths].
    """
    lengths = (end - start).long()
    rows = torch.repeat_interleave(torch.arange(lengths.numel()), lengths)
    before = lengths.cumsum(0) - lengths
    columns = torch.arange(rows.numel()) - before[rows] + start.long()[rows]
    return rows, columns


def assign_req_to_token_pool(
    programs: int,
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    *_sizes: int,
) -> None:
    """Write the slots ``out_cache_loc`` (packed, request after request) into the requests' ranges."""
    rows, columns = ragged(start_offset[:programs], end_offset[:programs])
    slots = out_cache_loc[: rows.numel()].to(req_to_token.dtype)
    req_to_token[req_pool_indices.long()[rows], columns] = slots


def assign_extend_cache_locs(
    programs: int,
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    *_sizes: int,
) -> None:
    """Read the slots of the requests' ranges into ``out_cache_loc``, packed."""
    rows, columns = ragged(start_offset[:programs], end_offset[:programs])
    slots = req_to_token[req_pool_indices.long()[rows], columns]
    out_cache_loc[: rows.numel()] = slots.to(out_cache_loc.dtype)


def assign_extend_cache_locs_func(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    batch_size: int,
    draft_token_num: int,
    device: Any,
) -> Tensor:
    """Return the slots of the requests' ranges, int64 [batch × draft tokens]. SGLang has no CPU branch here."""
    out = torch.empty(batch_size * draft_token_num, dtype=torch.int64, device=device)
    assign_extend_cache_locs(
        batch_size, req_pool_indices, req_to_token, start_offset, end_offset, out
    )
    return out


def _draft_columns(seq_lens: Tensor, count: int) -> Tensor:
    """Return the columns ``seq_len .. seq_len + count - 1`` of each request, int64 [batch, count]."""
    return seq_lens[:, None].long() + torch.arange(count)


def assign_draft_cache_locs(
    programs: int,
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    _extend_lens: Tensor,
    _num_new_pages_per_topk: Tensor,
    out_cache_loc: Tensor,
    _source_cache_loc: Tensor,
    _target_cache_loc: Tensor,
    _last_page_lens_cumsum: Tensor,
    _duplicate_cache_len: int,
    _pool_len: int,
    topk: int,
    speculative_num_steps: int,
    page_size: int,
    *_uppers: int,
) -> None:
    """Give each request ``topk × steps`` slots behind its tokens (v1 worker).

    Raises:
        NotImplementedError: pages larger than one token.
    """
    if page_size != 1:
        raise NotImplementedError("the CPU engine serves page size 1 only")
    count = topk * speculative_num_steps
    slots = out_cache_loc[: programs * count].view(programs, count)
    columns = _draft_columns(seq_lens[:programs], count)
    req_to_token[req_pool_indices[:programs, None].long(), columns] = slots.to(req_to_token.dtype)


def assign_draft_cache_locs_page_size_1(
    programs: int,
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    _pool_len: int,
    topk: int,
    speculative_num_steps: int,
) -> None:
    """Read back the ``topk × steps`` slots behind each request's tokens (v2 worker)."""
    count = topk * speculative_num_steps
    columns = _draft_columns(seq_lens[:programs], count)
    slots = req_to_token[req_pool_indices[:programs, None].long(), columns]
    out_cache_loc[: programs * count] = slots.reshape(-1).to(out_cache_loc.dtype)


def create_extend_after_decode_spec_info(
    programs: int,
    accept_tokens: Tensor,
    seq_lens: Tensor,
    accept_lens: Tensor,
    positions: Tensor,
    bonus_tokens: Tensor,
    *_uppers: int,
) -> None:
    """Fill the positions of the accepted tokens (packed) and each request's last accepted token."""
    lengths = accept_lens[:programs].long()
    _, columns = ragged(seq_lens[:programs] - lengths, seq_lens[:programs])
    positions[: columns.numel()] = columns.to(positions.dtype)
    bonus_tokens[:programs] = accept_tokens[lengths.cumsum(0) - 1].to(bonus_tokens.dtype)


def fill_bonus_tokens(
    programs: int,
    accept_tokens: Tensor,
    accept_lens: Tensor,
    bonus_tokens: Tensor,
    num_draft_tokens: int,
) -> None:
    """Fill each request's last accepted token from ``accept_tokens``, padded to ``num_draft_tokens`` a request."""
    rows = torch.arange(programs) * num_draft_tokens
    last = rows + accept_lens[:programs].long() - 1
    bonus_tokens[:programs] = accept_tokens.reshape(-1)[last].to(bonus_tokens.dtype)


def fill_accepted_out_cache_loc(
    programs: int,
    accept_index: Tensor,
    out_cache_loc: Tensor,
    accepted_out_cache_loc: Tensor,
    *_uppers: int,
) -> None:
    """Pack the slots of the accepted tokens; entries of ``accept_index`` that are -1 are skipped."""
    index = accept_index.reshape(-1)[:programs]
    kept = index[index > -1].long()
    accepted_out_cache_loc[: kept.numel()] = out_cache_loc[kept]
