"""SGLang 0.5.12's draft tree, step by step as its source does it, on real draft logits.

Written from ``spec_utils.select_top_k_tokens``, ``eagle_utils.organize_draft_results``, the parent
arithmetic of ``build_tree_kernel_efficient`` and greedy verification; it knows nothing of plans,
kinds or costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def grow(
    draft_probs: torch.Tensor, start: int, topk: int, steps: int, draft_tokens: int
) -> tuple[list[int], list[int]]:
    """The tree's tokens (root first) and the index of each one's parent.

    Args:
        draft_probs: Softmax of the draft's logits after each token, [vocab, vocab].
        start: The last verified token.
        topk: Candidates per node.
        steps: Draft steps.
        draft_tokens: Size of the tree, the root included.
    """
    score_list, token_list, parents_list = [], [], []
    topk_p, topk_index = torch.topk(draft_probs[start][None], topk, dim=-1)
    scores = topk_p
    for i in range(steps):
        if i == 0:
            input_ids = topk_index.flatten()
            score_list.append(topk_p[:, None])
            token_list.append(topk_index)
            parents_list.append(torch.arange(-1, topk)[None])
        else:
            expand = scores[:, :, None] * topk_p.view(1, topk, topk)
            scores, chosen = torch.topk(expand.flatten(1), topk, dim=-1)
            tokens = topk_index.view(1, topk * topk)
            input_ids = tokens.gather(1, chosen).flatten()
            score_list.append(expand)
            token_list.append(tokens)
            parents_list.append(chosen + (topk * topk * (i - 1) + topk))
        if i == steps - 1:
            break
        topk_p, topk_index = torch.topk(draft_probs[input_ids], topk, dim=-1)
    flat_scores = torch.cat(score_list, dim=1).flatten(1)
    flat_tokens = torch.cat(token_list, dim=1)
    kept = torch.topk(flat_scores, draft_tokens - 1, dim=-1).indices.sort().values[0].tolist()
    parents = torch.cat(parents_list[:-1], dim=1)[0].tolist() if steps > 1 else []
    at = {place: node + 1 for node, place in enumerate(kept)}
    parent_of = [-1]
    for place in kept:
        group = place // topk
        parent_of.append(0 if group == 0 else at[parents[group]])
    return [start, *flat_tokens[0, kept].tolist()], parent_of


def accepted(tree: tuple[list[int], list[int]], following: Callable[[int], int], steps: int) -> int:
    """Draft tokens that greedy verification accepts."""
    tokens, parent_of = tree
    node = count = 0
    while count < steps:
        want = following(tokens[node])
        match = [
            child
            for child, parent in enumerate(parent_of)
            if parent == node and tokens[child] == want
        ]
        if not match:
            break
        node, count = match[0], count + 1
    return count
