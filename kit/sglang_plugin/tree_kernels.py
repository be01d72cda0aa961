"""The draft tree: build it, walk it greedily, walk it by sampling. Written in torch over the whole batch.

They stand for ``sgl_kernel``'s CUDA kernels of the same names, with the same arguments (the misspelt ``retrive_*``
included). Shapes: ``b`` requests, ``n`` tokens of a request's tree (the root, which is the last verified token,
comes first), ``s`` verify steps plus one.
"""

from __future__ import annotations

import torch
from torch import Tensor

FULL_MASK = 0
QLEN_ONLY = 1


def tree_parents(parent_list: Tensor, selected: Tensor, topk: int) -> Tensor:
    """Return each node's parent.

    Args:
        parent_list: int [b, 1 + topk × (depth - 1)], the candidate from which each group of topk candidates grew.
        selected: int [b, n - 1], the chosen candidates, ascending.
        topk: Candidates a group.

    Returns:
        int64 [b, n]: the parent's place in the tree; 0 is the root; -1 for the root itself and for a node
        whose parent was not chosen, which tied scores can cause.
    """
    batch, chosen = selected.shape
    group = selected.long() // topk
    grown_from_root = group == 0
    parents = torch.full((batch, chosen + 1), -1, dtype=torch.int64)
    if parent_list.numel():
        candidate = parent_list.long().gather(1, group.clamp(max=parent_list.shape[1] - 1))
        place = torch.searchsorted(selected.long().contiguous(), candidate)
        inside = place.clamp(max=chosen - 1)
        found = (place < chosen) & (selected.long().gather(1, inside) == candidate)
        parents[:, 1:] = torch.where(found, inside + 1, -1)
    parents[:, 1:][grown_from_root] = 0
    return parents


def build_tree_kernel_efficient(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Fill mask, positions and links of the draft trees.

    Args:
        parent_list: See :func:`tree_parents`.
        selected_index: int [b, n - 1].
        verified_seq_len: int [b], tokens before the tree.
        tree_mask: bool, flat; per request n rows of (sequence + n) columns, or of n (QLEN_ONLY). Filled in place.
        positions: int [b × n]. Filled in place.
        retrive_index: int [b, n], the flat index of each node. Filled in place.
        retrive_next_token: int [b, n], first child or -1. Filled in place.
        retrive_next_sibling: int [b, n], next sibling or -1. Filled in place.
        topk: Candidates a draft step.
        depth: Draft steps.
        draft_token_num: n.
        tree_mask_mode: FULL_MASK or QLEN_ONLY.

    Raises:
        NotImplementedError: the bit-packed mask, which no CPU attention reads.
    """
    mode = int(tree_mask_mode)
    if mode not in (FULL_MASK, QLEN_ONLY):
        raise NotImplementedError("the CPU engine does not read bit-packed tree masks")
    n = draft_token_num
    parents = tree_parents(parent_list, selected_index, topk)
    batch = parents.shape[0]
    nodes = torch.arange(n)

    # Ancestors: walk all nodes up at once; the root is its own end.
    sees = torch.zeros(batch, n, n, dtype=torch.bool)
    sees[:, :, 0] = True
    level = torch.zeros(batch, n, dtype=torch.int64)
    at = nodes.expand(batch, n)
    rows = torch.arange(batch)[:, None]
    for _ in range(depth + 1):
        below_root = at > 0
        sees[rows, nodes, at.clamp(min=0)] |= below_root
        level += below_root
        at = torch.where(below_root, parents.gather(1, at.clamp(min=0)), at)
    positions.copy_((verified_seq_len.long()[:, None] + level).reshape(-1))

    lengths = (
        verified_seq_len.long() if mode == FULL_MASK else torch.zeros(batch, dtype=torch.int64)
    )
    widths = lengths + n
    before = (n * widths).cumsum(0) - n * widths
    flat = (before + lengths)[:, None, None] + nodes[:, None] * widths[:, None, None] + nodes
    tree_mask[flat.reshape(-1)] = sees.reshape(-1)

    retrive_index.copy_(torch.arange(batch * n).view(batch, n))
    # Children and siblings in ascending order. A node without a parent is in nobody's list.
    is_child = parents[:, None, :] == nodes[:, None]  # [b, parent, child]
    first = torch.where(is_child, nodes, n).amin(2)
    retrive_next_token.copy_(torch.where(first < n, first, -1))
    same = (parents[:, None, :] == parents[:, :, None]) & (parents >= 0)[:, :, None]
    later = torch.where(same & (nodes > nodes[:, None]), nodes, n).amin(2)
    retrive_next_sibling.copy_(torch.where(later < n, later, -1))


def _take(table: Tensor, index: Tensor) -> Tensor:
    """Return ``table[i, index[i]]`` for each row, with -1 read as 0 (the caller masks it)."""
    return table.gather(1, index.clamp(min=0)[:, None])[:, 0]


def verify_tree_greedy(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk down from the root as long as a child holds the token that the target predicts.

    Args:
        predicts: int [b × n]; the target's token at every node on the path. Filled in place.
        accept_index: int [b, s]; flat indices of the path, root first, -1 after its end. Filled in place.
        accept_token_num: int [b]; accepted draft tokens, without the bonus token. Filled in place.
        candidates: int [b, n], the tree's tokens.
        retrive_index: int [b, n].
        retrive_next_token: int [b, n].
        retrive_next_sibling: int [b, n].
        target_predict: int [b, n], the target's choice after each node.
    """
    batch, steps = accept_index.shape
    want_all = target_predict.reshape(batch, -1)
    at = torch.zeros(batch, dtype=torch.int64)
    walking = torch.ones(batch, dtype=torch.bool)
    accepted = torch.zeros(batch, dtype=torch.int64)
    index = torch.full((batch, steps), -1, dtype=torch.int64)
    index[:, 0] = retrive_index[:, 0]
    path_flat, path_token = [retrive_index[:, 0].long()], [want_all[:, 0]]
    for step in range(1, steps):
        want = _take(want_all, at)
        child = _take(retrive_next_token, at)
        # Try one sibling after another until one holds the wanted token or none is left.
        while True:
            missing = walking & (child >= 0) & (_take(candidates, child) != want)
            if not bool(missing.any()):
                break
            child = torch.where(missing, _take(retrive_next_sibling, child), child)
        walking = walking & (child >= 0)
        if not bool(walking.any()):
            break
        at = torch.where(walking, child, at)
        accepted += walking
        flat = _take(retrive_index, at).long()
        index[:, step] = torch.where(walking, flat, -1)
        path_flat.append(flat)
        path_token.append(_take(want_all, at))
    # A request that stopped early repeats its last node here, which writes the same token once more.
    predicts[torch.cat(path_flat)] = torch.cat(path_token).to(predicts.dtype)
    accept_index.copy_(index)
    accept_token_num.copy_(accepted)


def verify_tree_greedy_func(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    target_predict: Tensor,
    topk: int = -1,  # noqa: ARG001 - the original's argument
) -> tuple[Tensor, Tensor, Tensor]:
    """See :func:`verify_tree_greedy`. SGLang's own has no CPU branch and returns its outputs unfilled."""
    verify_tree_greedy(
        predicts,
        accept_index,
        accept_token_num,
        candidates,
        retrieve_index,
        retrieve_next_token,
        retrieve_next_sibling,
        target_predict,
    )
    return predicts, accept_index, accept_token_num
