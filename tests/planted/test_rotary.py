from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from kit.planted import rotary

from .conftest import small

HEAD_SIZES = [16, 32, 64, 80, 128]


def _spec(head_dim: int, positions: int) -> object:
    return small(hidden=4 * head_dim, max_positions=positions)


@pytest.mark.parametrize("head_dim", HEAD_SIZES)
@pytest.mark.parametrize("positions", [512, 4352, 32768])
def test_every_distance_scores_the_promised_gap_below_itself(head_dim: int, positions: int) -> None:
    chosen = rotary.choose(_spec(head_dim, positions))  # type: ignore[arg-type]
    vector = chosen.vector()
    # Rotate and multiply out, instead of using the closed form that the choice was made with.
    half = head_dim // 2
    angle = np.outer(np.arange(positions), 10000.0 ** (-2.0 * np.arange(half) / head_dim))
    keys = np.concatenate([vector[:half] * np.cos(angle), vector[:half] * np.sin(angle)], axis=1)
    score = keys @ keys[0] / math.sqrt(head_dim)
    gap = score[0] - score[1:]
    assert gap.min() >= rotary.SCORE_GAP - 1e-6
    # Tight: the scale is no larger than it has to be.
    assert gap.min() == pytest.approx(rotary.SCORE_GAP)


@pytest.mark.parametrize("head_dim", HEAD_SIZES)
@pytest.mark.parametrize("tables", [torch.bfloat16, torch.float32])
def test_bfloat16_leaves_most_of_the_gap_at_4352_positions(
    head_dim: int, tables: torch.dtype
) -> None:
    """Weights, queries, keys and (as SGLang has them off CUDA) rotary tables in bfloat16."""
    positions = 4352
    chosen = rotary.choose(_spec(head_dim, 8192))  # type: ignore[arg-type]
    left = torch.tensor(chosen.vector()).to(torch.bfloat16)[: head_dim // 2]
    frequency = 1.0 / 10000 ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angle = torch.arange(positions, dtype=torch.float32)[:, None] * frequency
    cos, sin = angle.cos().to(tables), angle.sin().to(tables)
    rotated = torch.cat([left * cos, left * sin], dim=1).to(torch.bfloat16).float()
    own = (rotated * rotated).sum(dim=1)
    least = float("inf")
    for rows in torch.split(torch.arange(positions), 512):
        score = rotated[rows] @ rotated.T
        score[torch.arange(rows.numel()), rows] = -torch.inf
        least = min(least, float((own[rows] - score.amax(dim=1)).min()))
    assert least / math.sqrt(head_dim) > rotary.SCORE_GAP - 8


def test_the_split_beats_a_single_frequency_and_an_even_split() -> None:
    chosen = rotary.choose(_spec(64, 8192))  # type: ignore[arg-type]
    distances = np.arange(1, 8192)
    for weights in (np.eye(32)[0], np.full(32, 1 / 32)):
        assert 1 - rotary.score_share(weights, distances).max() < chosen.gap_share / 1.5
    assert chosen.weights.sum() == pytest.approx(1)
