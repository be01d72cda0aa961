"""Attention on the CPU for every mode that EAGLE needs: one padded scaled-dot-product call a layer.

SGLang's ``torch_native`` backend knows prefill and decode only, and loops over requests. Here each forward pass
builds one table of KV slots and one mask for the whole batch; every layer then gathers and attends once.
Nothing at import time needs SGLang, the classes are made by :func:`backend_classes`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Metadata:
    """What all layers of one forward pass share.

    Attributes:
        slots: int64 [rows, keys], the KV slot of each key; entries behind a row's keys are masked.
        mask: bool [rows, 1, queries, keys], True where a query sees a key; queries may be 1 to broadcast.
        queries: Queries a row, after padding.
        scatter: int64 [tokens], the place of each token among the padded queries; None if nothing is padded.
    """

    slots: Tensor
    mask: Tensor
    queries: int
    scatter: Tensor | None


def _below(lengths: Tensor, keys: int) -> Tensor:
    """Return bool [rows, keys], True below each row's length."""
    return torch.arange(keys) < lengths[:, None]


def decode_metadata(pool: Tensor, req: Tensor, lens: Tensor) -> Metadata:
    """One query a request, which sees all of its ``lens`` tokens."""
    keys = int(lens.max())
    return Metadata(pool[req, :keys].long(), _below(lens, keys)[:, None, None], 1, None)


def draft_decode_metadata(
    pool: Tensor, req: Tensor, lens: Tensor, topk: int, steps: int, step: int
) -> Metadata:
    """Draft step ``step`` (from 0): ``topk`` rows a request, each sees the prefix and its own branch.

    A branch owns ``steps`` slots behind the prefix, branch after branch.
    """
    rows = lens.repeat_interleave(topk)
    own = step + 1
    keys = int(lens.max()) + own
    slots = pool[req, :keys].long().repeat_interleave(topk, 0)
    branch = torch.arange(topk).repeat(lens.numel()) * steps
    columns = (rows + branch)[:, None] + torch.arange(own)
    branch_slots = pool[req.repeat_interleave(topk)[:, None], columns].long()
    slots.scatter_(1, rows[:, None] + torch.arange(own), branch_slots)
    return Metadata(slots, _below(rows + own, keys)[:, None, None], 1, None)


def verify_metadata(pool: Tensor, req: Tensor, lens: Tensor, tree_mask: Tensor, n: int) -> Metadata:
    """``n`` tree tokens a request behind ``lens`` tokens; the flat tree mask says who sees whom."""
    batch = lens.numel()
    keys = int(lens.max()) + n
    mask = torch.zeros(batch, n, keys, dtype=torch.bool)
    widths = (lens + n).tolist()
    at = 0
    for row, width in enumerate(widths):
        mask[row, :, :width] = tree_mask[at : at + n * width].view(n, width)
        at += n * width
    return Metadata(pool[req, :keys].long(), mask[:, None], n, None)


def extend_metadata(pool: Tensor, req: Tensor, lens: Tensor, new: Tensor) -> Metadata:
    """The last ``new`` of each request's ``lens`` tokens, packed; causal."""
    keys, queries = int(lens.max()), int(new.max())
    order = torch.arange(queries)
    seen_from = (lens - new)[:, None] + order
    mask = torch.arange(keys) <= seen_from[:, :, None]
    scatter = None
    if bool((new != queries).any()):
        scatter = torch.nonzero((order < new[:, None]).reshape(-1))[:, 0]
    return Metadata(pool[req, :keys].long(), mask[:, None], queries, scatter)


def attend(q: Tensor, keys: Tensor, values: Tensor, meta: Metadata, scaling: float) -> Tensor:
    """Attend with the KV cache of one layer.

    Args:
        q: [tokens, heads, head size].
        keys: [slots, KV heads, head size], the whole cache of the layer.
        values: [slots, KV heads, value size].
        meta: Of this forward pass.
        scaling: Factor on the scores.

    Returns:
        [tokens, heads × value size].
    """
    heads, size = q.shape[1], q.shape[2]
    rows = meta.slots.shape[0]
    if meta.scatter is not None:
        padded = q.new_zeros(rows * meta.queries, heads, size)
        padded[meta.scatter] = q
        q = padded
    k = keys[meta.slots].transpose(1, 2).to(q.dtype)
    v = values[meta.slots].transpose(1, 2).to(q.dtype)
    out = F.scaled_dot_product_attention(
        q.view(rows, meta.queries, heads, size).transpose(1, 2),
        k,
        v,
        attn_mask=meta.mask,
        scale=scaling,
        enable_gqa=heads != keys.shape[1],
    )
    flat = out.transpose(1, 2).reshape(rows * meta.queries, -1)
    return flat if meta.scatter is None else flat[meta.scatter]


@functools.cache
def backend_classes() -> tuple[type, type]:
    """Return the attention backend and the multi-step draft backend, as subclasses of SGLang's."""
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    class CpuAttention(TorchNativeAttnBackend):  # type: ignore[misc]
        """SGLang's ``torch_native`` with tree verify, draft decode and draft extend.

        Args:
            runner: SGLang's model runner.
            topk: Draft candidates a step.
            steps: Draft steps.
            step: This backend's draft step, None for everything else.
        """

        def __init__(
            self, runner: Any, topk: int = 1, steps: int = 1, step: int | None = None
        ) -> None:
            super().__init__(runner)
            self.topk, self.steps, self.step = topk, steps, step
            self.meta: Metadata | None = None

        def init_forward_metadata(self, forward_batch: Any) -> None:
            """Build the table and the mask of a forward pass."""
            pool = forward_batch.req_to_token_pool.req_to_token
            req = forward_batch.req_pool_indices.long()
            lens = forward_batch.seq_lens.long()
            mode, spec = forward_batch.forward_mode, forward_batch.spec_info
            if not lens.numel():
                self.meta = None
            elif self.step is not None:
                self.meta = draft_decode_metadata(pool, req, lens, self.topk, self.steps, self.step)
            elif mode.is_target_verify():
                self.meta = verify_metadata(pool, req, lens, spec.custom_mask, spec.draft_token_num)
            elif mode.is_decode():
                self.meta = decode_metadata(pool, req, lens)
            elif mode.is_draft_extend():
                # v1 packs the accepted tokens, a different number for each request.
                self.meta = extend_metadata(pool, req, lens, spec.num_accept_tokens.long())
            else:
                self.meta = extend_metadata(pool, req, lens, forward_batch.extend_seq_lens.long())

        def update_verify_buffers_to_fill_after_draft(self, *_: Any) -> None:
            """Nothing is filled late here."""

        def _forward(self, q: Tensor, k: Any, v: Any, layer: Any, batch: Any, save: bool) -> Tensor:
            cache = batch.token_to_kv_pool
            if save and k is not None:
                cache.set_kv_buffer(layer, batch.out_cache_loc, k, v)
            if self.meta is None:
                return q.new_empty(q.shape[0], layer.tp_q_head_num * layer.v_head_dim)
            return attend(
                q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim),
                cache.get_key_buffer(layer.layer_id),
                cache.get_value_buffer(layer.layer_id),
                self.meta,
                layer.scaling,
            )

        def forward_extend(
            self,
            q: Tensor,
            k: Any,
            v: Any,
            layer: Any,
            forward_batch: Any,
            save_kv_cache: bool = True,
            **_: Any,
        ) -> Tensor:
            """Attend for prefill, verify and draft extend."""
            return self._forward(q, k, v, layer, forward_batch, save_kv_cache)

        def forward_decode(
            self,
            q: Tensor,
            k: Any,
            v: Any,
            layer: Any,
            forward_batch: Any,
            save_kv_cache: bool = True,
            **_: Any,
        ) -> Tensor:
            """Attend for decode and draft decode."""
            return self._forward(q, k, v, layer, forward_batch, save_kv_cache)

    class CpuDraftSteps:
        """One backend for each draft step but the last, whose output nobody reads."""

        def __init__(self, runner: Any, topk: int, steps: int) -> None:
            self.attn_backends = [CpuAttention(runner, topk, steps, i) for i in range(steps - 1)]

        def init_forward_metadata(self, forward_batch: Any) -> None:
            """Build the tables of all steps."""
            for backend in self.attn_backends:
                backend.init_forward_metadata(forward_batch)

    return CpuAttention, CpuDraftSteps
