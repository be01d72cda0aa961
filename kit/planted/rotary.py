"""How the draft attends to its own position only, at any distance up to the longest sequence.

Queries and keys are the same vector u at every position, so the score of two positions depends on
their distance alone: sum over rotary frequencies of |u_f|² cos(w_f · distance). It is highest at
distance 0. How far it stays below at *every* other distance is computed here, and the share of u
on each frequency and the scale are chosen from that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kit.errors import UserError
from kit.planted.spec import ROPE_THETA, PairSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCORE_GAP = 40.0
"""Attention logit by which a position prefers itself to the best other one. e^-40 of 8,192 others
is nothing; bfloat16 queries, keys and rotary tables take off less than 8 of it (measured in the
tests)."""

_LEAST_SHARE = 0.03
"""Below this share of the score at distance 0 the gap would drown in bfloat16 rounding of the
score itself."""


@dataclass(frozen=True)
class SelfAttention:
    """Where the draft's queries and keys sit.

    Attributes:
        weights: Share of |u|² on each rotary frequency, highest first, sums to 1, float64
            [head_dim / 2].
        gap_share: 1 minus the largest score at another distance, as a share of the score at
            distance 0.
        score: Attention logit at distance 0 (after division by the root of the head size).
    """

    weights: NDArray[np.float64]
    gap_share: float
    score: float

    def vector(self) -> NDArray[np.float64]:
        """u, the query and key of every position before rotation, float64 [head_dim].

        Rotary pairs entry f with entry f + head_dim/2; the second of a pair stays 0.
        """
        half = self.weights.size
        norm = self.score * math.sqrt(2 * half)
        return np.concatenate([np.sqrt(norm * self.weights), np.zeros(half)])


def frequencies(head_dim: int) -> NDArray[np.float64]:
    """Rotary angular frequencies in radians per position, highest first, float64 [head_dim / 2]."""
    return ROPE_THETA ** (-2.0 * np.arange(head_dim // 2) / head_dim)


def score_share(weights: NDArray[np.float64], distances: NDArray[np.int64]) -> NDArray[np.float64]:
    """Score at each distance as a share of the score at distance 0."""
    angles = np.outer(distances, frequencies(2 * weights.size))
    result: NDArray[np.float64] = np.cos(angles) @ weights
    return result


def choose(spec: PairSpec) -> SelfAttention:
    """The split over frequencies with the largest worst-case gap over all distances of the pair.

    Tried are splits that put a share a (in sixteenths) on the highest frequency, which tells
    neighbours apart, and the rest evenly on the next n, which tell distances apart where the
    highest comes round again.

    Raises:
        UserError: The heads are too small to tell positions apart.
    """
    half = spec.head_dim // 2
    distances = np.arange(1, spec.max_positions)
    cosines = np.cos(np.outer(distances, frequencies(spec.head_dim)))
    rest = np.cumsum(cosines[:, 1:], axis=1) / np.arange(1, half) if half > 1 else cosines[:, :0]
    best, best_gap = np.eye(half)[0], float(1 - cosines[:, 0].max())
    for sixteenths in range(1, 16):
        share = sixteenths / 16
        if not rest.size:
            break
        gaps = 1 - (share * cosines[:, :1] + (1 - share) * rest).max(axis=0)
        n = int(gaps.argmax()) + 1
        if gaps[n - 1] > best_gap:
            best_gap = float(gaps[n - 1])
            best = np.concatenate([[share], np.full(n, (1 - share) / n), np.zeros(half - 1 - n)])
    if best_gap < _LEAST_SHARE:
        raise UserError(
            f"Heads of size {spec.head_dim} cannot tell {spec.max_positions} positions apart.",
            "Use fewer heads, a larger hidden size or fewer positions (16 is enough for 8,192).",
        )
    return SelfAttention(best, best_gap, SCORE_GAP / best_gap)
