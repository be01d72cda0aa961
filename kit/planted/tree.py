"""How SGLang 0.5.12 grows an EAGLE draft tree, for tokens whose draft probabilities are planted.

Per step every kept node proposes ``topk`` children; a child's score is the product of the draft's
softmax probabilities along its path; the ``topk`` best children of the step are expanded further
(``select_top_k_tokens``). At the end the best ``draft_tokens - 1`` of *all* children proposed,
kept or not, become the tree (``organize_draft_results``). Here scores are costs: minus the
logarithm, smaller is better.

A planted token proposes its first choice and, where planned, its second; the rest of its ``topk``
are noise tokens of cost ≥ 8 that are never right. They fill seats that nothing else wants and are
left out.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kit.planted.spec import GAPS

if TYPE_CHECKING:
    from numpy.typing import NDArray

EASY, SECOND, MISS = 0, 1, 2
"""Kinds of token: first choice right; second choice right; neither."""

_REST = 1e-3
"""Probability mass of all noise tokens: only its being positive matters (a child scores below its
parent)."""

FIRST_COST = tuple(math.log1p(_REST + math.exp(-gap)) for gap in GAPS)
"""Cost of the first choice where there is a second, by class."""
ALONE_COST = math.log1p(_REST)
"""Cost of the first choice where there is none."""


def check_shape(topk: int, steps: int, draft_tokens: int) -> None:
    """Raise ValueError unless SGLang could run this tree.

    A tree has at least one seat besides the root and no more than the candidates proposed.
    """
    if min(topk, steps) < 1 or draft_tokens < 2:
        raise ValueError("topk and steps must be at least 1 and draft_tokens at least 2")
    proposed = topk + (steps - 1) * topk * topk
    if draft_tokens - 1 > proposed:
        raise ValueError(
            f"draft_tokens {draft_tokens} needs {draft_tokens - 1} candidates, but topk {topk} and "
            f"steps {steps} propose {proposed}"
        )


def accepted_drafts(
    first: NDArray[np.int64],
    second: NDArray[np.int64],
    following: NDArray[np.int64],
    token_class: NDArray[np.int64],
    topk: int,
    steps: int,
    draft_tokens: int,
    noise_cost: float = math.inf,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Draft tokens accepted in a verify step that starts at each token.

    Args:
        first: First choice of the draft after each token, shape [vocab].
        second: Its second choice, or -1 where there is none.
        following: What the target says after each token.
        token_class: Class of each token (index into ``GAPS``).
        topk: Candidates per node.
        steps: Draft steps.
        draft_tokens: Size of the tree, the root included.
        noise_cost: Cost of the best noise token; a right node as costly may lose its seat to one.

    Returns:
        The number of draft tokens accepted (bonus token not counted), and how far the closest
        decision about a right token was from going the other way, in log score (infinite where
        nothing competed).
    """
    check_shape(topk, steps, draft_tokens)
    count = first.shape[0]
    gap = np.asarray(GAPS)[token_class]
    with_second = second >= 0
    cost_first = np.where(with_second, np.asarray(FIRST_COST)[token_class], ALONE_COST)

    token = np.arange(count, dtype=np.int64)[:, None]
    cost = np.zeros((count, 1))
    shared = np.zeros((count, 1), dtype=np.int64)  # right tokens at the start of the node's path
    grown: list[_Level] = []
    margin = np.full(count, np.inf)
    for step in range(steps):
        choices = [(first, cost_first)]
        if topk > 1:
            choices.append((second, np.where(with_second, cost_first + gap, np.inf)))
        # Where there is no second choice its cost is infinite and its token does not matter.
        child = np.concatenate([choice[token] for choice, _ in choices], 1)
        on_path = np.tile(shared == step, len(choices))
        right = on_path & (child == np.tile(following[token], len(choices)))
        level = _Level(
            np.concatenate([cost + extra[token] for _, extra in choices], 1),
            np.tile(shared, len(choices)) + right,
            right,
        )
        grown.append(level)
        order = np.argsort(level.cost, axis=1, kind="stable")
        if step < steps - 1:
            margin = np.minimum(margin, _margin(level, order, topk, step + 1, noise_cost))
        keep = order[:, :topk]
        cost = np.take_along_axis(level.cost, keep, 1)
        shared = np.take_along_axis(level.shared, keep, 1)
        token = np.maximum(np.take_along_axis(child, keep, 1), 0)

    tree = _Level(*(np.concatenate(parts, 1) for parts in zip(*grown, strict=True)))
    order = np.argsort(tree.cost, axis=1, kind="stable")
    seats = draft_tokens - 1
    margin = np.minimum(margin, _margin(tree, order, seats, steps, noise_cost))
    # Right nodes are one path from the root and a parent precedes its child: counting them is
    # enough.
    return np.take_along_axis(tree.right, order[:, :seats], 1).sum(1), margin


class _Level(NamedTuple):
    """Nodes of one step (or of all), a row for each start: [starts, nodes].

    ``shared`` counts the right tokens at the start of the node's path; ``right`` says that all of
    it is right.
    """

    cost: NDArray[np.float64]
    shared: NDArray[np.int64]
    right: NDArray[np.bool_]


def _margin(
    nodes: _Level, order: NDArray[np.int64], seats: int, depth: int, noise_cost: float
) -> NDArray[np.float64]:
    """How close the right nodes are to losing or winning a seat, in log score, for each start.

    A right node competes with the wrong nodes across the boundary, except its own descendants:
    they always come after it.
    """
    seated = np.zeros(order.shape, dtype=bool)
    np.put_along_axis(seated, order[:, :seats], True, 1)
    finite = np.isfinite(nodes.cost)
    worst: NDArray[np.float64] = noise_cost - np.where(
        nodes.right & seated & finite, nodes.cost, -np.inf
    ).max(1)
    for level in range(1, depth + 1):
        mine = nodes.right & (nodes.shared == level) & finite
        mine_seated = (mine & seated).any(1)
        cost = np.where(mine, nodes.cost, np.inf).min(1)
        rivals = ~nodes.right & (nodes.shared < level) & finite & (seated != mine_seated[:, None])
        rival_cost = np.where(rivals, nodes.cost, np.inf)
        apart = np.abs(rival_cost - np.where(np.isfinite(cost), cost, 0.0)[:, None]).min(1)
        worst = np.where(np.isfinite(cost), np.minimum(worst, apart), worst)
    return worst
