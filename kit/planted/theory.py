"""Expected accept length of a planted pair, from p and q alone."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kit.planted.spec import GAPS
from kit.planted.tree import ALONE_COST, FIRST_COST, check_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_STATES = 200_000


def expected_accept_length(topk: int, steps: int, draft_tokens: int, p: float, q: float) -> float:
    """Expected tokens per verify step (bonus token included) of a long greedy output.

    A chain of k steps gives 1 + p + … + p^k. In a tree a right second choice counts too, but only
    where its node is in the tree that SGLang grows from the planted scores; this is the exact
    expectation over what kind of token every node turns out to be.

    Args:
        topk: ``speculative_eagle_topk``.
        steps: ``speculative_num_steps``.
        draft_tokens: ``speculative_num_draft_tokens`` (root included).
        p: Share of tokens whose first choice is right.
        q: Share of the others whose second choice is right.

    Raises:
        ValueError: A rate is not in [0, 1], or SGLang could not run this tree.
    """
    check_shape(topk, steps, draft_tokens)
    if not (0.0 <= p <= 1.0 and 0.0 <= q <= 1.0):
        raise ValueError("p and q must be between 0 and 1")
    if topk == 1:
        return math.fsum(p**k for k in range(min(steps, draft_tokens - 1) + 1))
    law = [_Tree(topk, steps, draft_tokens - 1, p, q, start).law() for start in range(len(GAPS))]
    return _long_run(np.array(law))


def _long_run(law: NDArray[np.float64]) -> float:
    """Mean tokens per step when step after step starts in the class that the last one ended in.

    Args:
        law: Probability of accepting 0, 1, … draft tokens, by class of the first token, [classes,
            steps + 1].
    """
    classes, outcomes = law.shape
    move = np.zeros((classes, classes))
    for start in range(classes):
        for accepted in range(outcomes):
            move[start, (start + accepted + 1) % classes] += law[start, accepted]
    # Averaging with the identity removes periods; a start spread evenly settles what is left open.
    lazy = np.linalg.matrix_power((move + np.eye(classes)) / 2, 1 << 12)
    share = np.full(classes, 1 / classes) @ lazy
    return float(share @ (law @ np.arange(1, outcomes + 1)))


@dataclass(frozen=True)
class _Node:
    cost: float
    right: bool


class _Tree:
    """All trees that can grow from a token of one class, with their probabilities."""

    def __init__(self, topk: int, steps: int, seats: int, p: float, q: float, start: int) -> None:
        self.topk, self.steps, self.seats = topk, steps, seats
        self.p, self.s = p, (1 - p) * q
        self.start = start
        self.states = 0

    def law(self) -> list[float]:
        """Probability of accepting 0, 1, … ``steps`` draft tokens.

        Raises:
            ValueError: The tree has too many shapes to go through.
        """
        result = [0.0] * (self.steps + 1)
        self._grow(0, [_Node(0.0, right=True)], [], 1.0, result)
        return result

    def _grow(
        self,
        step: int,
        kept: list[_Node],
        candidates: list[_Node],
        weight: float,
        result: list[float],
    ) -> None:
        if weight == 0.0:
            return
        seated = sorted(candidates, key=lambda node: node.cost)[: self.seats]
        if step == self.steps:
            self.states += 1
            if self.states > _MOST_STATES:
                raise ValueError(
                    f"a tree of topk {self.topk}, {self.steps} steps and {self.seats + 1} tokens "
                    "has too many shapes to go through; use Plan.cycle_accept_length of a pair"
                )
            result[sum(node.right for node in seated)] += weight
            return
        # Children of a node that has no seat itself cannot get one: its kind need not be known.
        full = len(seated) == self.seats
        open_ = [node for node in kept if not full or node.cost <= seated[-1].cost]
        level = (self.start + step) % len(GAPS)
        choices = [self._children(node, level) for node in open_]
        for combination in itertools.product(*choices):
            children = [child for _, born in combination for child in born]
            best = sorted(children, key=lambda node: node.cost)[: self.topk]
            chance = math.prod((probability for probability, _ in combination), start=weight)
            self._grow(step + 1, best, candidates + children, chance, result)

    def _children(self, node: _Node, level: int) -> list[tuple[float, list[_Node]]]:
        """Every way a node can branch, with its probability; a missed right token is a wrong
        child."""
        alone, first = node.cost + ALONE_COST, node.cost + FIRST_COST[level]
        second = _Node(first + GAPS[level], right=node.right)
        if not node.right:
            return [
                (1 - self.s, [_Node(alone, right=False)]),
                (self.s, [_Node(first, right=False), second]),
            ]
        return [
            (self.p, [_Node(alone, right=True)]),
            (self.s, [_Node(first, right=False), second]),
            (1 - self.p - self.s, [_Node(alone, right=False)]),
        ]
