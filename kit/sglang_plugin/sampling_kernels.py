"""Sampling with a draft tree, written in torch: renormalisation by top-k and top-p, and tree rejection sampling.

They stand for the ``sgl_kernel`` functions of the same names.
"""

from __future__ import annotations

import torch
from torch import Tensor


def top_k_renorm_prob(probs: Tensor, top_ks: Tensor | int) -> Tensor:
    """Keep the ``top_ks`` most likely tokens of each row (ties with the last one included) and renormalise.

    Args:
        probs: float [rows, vocab].
        top_ks: int [rows] or one for all; values beyond the vocabulary keep everything.
    """
    rows, vocab = probs.shape
    k = torch.as_tensor(top_ks).long().expand(rows).clamp(1, vocab)
    if bool((k == vocab).all()):
        return probs / probs.sum(-1, keepdim=True)
    ordered = probs.sort(dim=-1, descending=True).values
    least = ordered.gather(1, (k - 1)[:, None])
    kept = torch.where(probs >= least, probs, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def top_p_renorm_prob(probs: Tensor, top_ps: Tensor | float) -> Tensor:
    """Keep the smallest set of most likely tokens whose mass reaches ``top_ps`` and renormalise.

    Args:
        probs: float [rows, vocab].
        top_ps: float [rows] or one for all.
    """
    p = torch.as_tensor(top_ps, dtype=probs.dtype).expand(probs.shape[0])
    if bool((p >= 1).all()):
        return probs / probs.sum(-1, keepdim=True)
    ordered, order = probs.sort(dim=-1, descending=True)
    # The token that crosses the mark is kept: mass before it is still below the mark.
    keep = (ordered.cumsum(-1) - ordered) < p[:, None]
    kept = torch.zeros_like(probs).scatter_(1, order, ordered * keep)
    return kept / kept.sum(-1, keepdim=True)


def tree_speculative_sampling_target_only(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,  # noqa: ARG001 - the original's argument; this is always deterministic
) -> None:
    """Walk the tree by rejection sampling, so that the output is distributed as the target alone would have it.

    At a node one coin is thrown; siblings are accepted as their cumulated target probability passes it. What was
    tried and refused is taken out of the distribution of the final token.

    Args:
        predicts: int [b × n]. Filled in place.
        accept_index: int [b, s]. Filled in place.
        accept_token_num: int [b]. Filled in place.
        candidates: int [b, n].
        retrive_index: int [b, n].
        retrive_next_token: int [b, n].
        retrive_next_sibling: int [b, n].
        uniform_samples: float [b, n], a coin for each node.
        uniform_samples_for_final_sampling: float [b].
        target_probs: float [b, n, vocab].
        draft_probs: float [b, n, vocab], zero on entry; refused mass is noted in it.
        threshold_single: Accept a token at once from this probability on.
        threshold_acc: Divide the cumulated probability by this.
    """
    batch, steps = accept_index.shape
    rows = torch.arange(batch)
    at = torch.zeros(batch, dtype=torch.int64)
    coin = uniform_samples[:, 0].clone()
    walking = torch.ones(batch, dtype=torch.bool)
    accepted = torch.zeros(batch, dtype=torch.int64)
    index = torch.full((batch, steps), -1, dtype=torch.int64)
    index[:, 0] = retrive_index[:, 0]
    for step in range(1, steps):
        mass = torch.zeros(batch, dtype=target_probs.dtype)
        child = torch.where(walking, retrive_next_token[rows, at].long(), -1)
        taken = torch.full((batch,), -1, dtype=torch.int64)
        while True:
            trying = (child >= 0) & (taken < 0)
            if not bool(trying.any()):
                break
            safe = child.clamp(min=0)
            token = candidates[rows, safe].long()
            p = target_probs[rows, at, token]
            mass = torch.where(trying, mass + p, mass)
            accept = trying & ((coin <= mass / threshold_acc) | (p >= threshold_single))
            taken = torch.where(accept, child, taken)
            refused = trying & ~accept
            draft_probs[rows[refused], at[refused], token[refused]] = p[refused]
            child = torch.where(refused, retrive_next_sibling[rows, safe].long(), child)
        walking = taken >= 0
        if not bool(walking.any()):
            break
        moved = rows[walking]
        token = candidates[moved, taken[walking]]
        predicts[retrive_index[moved, at[walking]].long()] = token.to(predicts.dtype)
        at = torch.where(walking, taken, at)
        coin = torch.where(walking, uniform_samples[rows, at], coin)
        accepted += walking
        index[:, step] = torch.where(walking, retrive_index[rows, at].long(), -1)
    left = target_probs[rows, at].clone()
    short = accepted < steps - 1
    left[short] = (left[short] - draft_probs[rows, at][short]).clamp(min=0)
    total = left.sum(-1)
    point = (uniform_samples_for_final_sampling.to(left.dtype) * total)[:, None]
    # `right` skips tokens of zero mass when the coin is exactly 0.
    drawn = torch.searchsorted(left.cumsum(-1), point, right=True)[:, 0]
    last_possible = left.shape[1] - 1 - (left.flip(1) > 0).float().argmax(1)
    predicts[retrive_index[rows, at].long()] = torch.minimum(drawn, last_possible).to(
        predicts.dtype
    )
    accept_index.copy_(index)
    accept_token_num.copy_(accepted)
