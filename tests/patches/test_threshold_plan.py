"""Above the threshold no number of verify steps is planned: how many a request takes depends on the batches it met."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kit.measure import _planned
from kit.scenarios import load_rig, load_scenario


def planned(scenario: str, level: int) -> int | None:
    job: Any = SimpleNamespace(
        scenarios={scenario: load_scenario(scenario)},
        rig=load_rig("cpu"),
        pair_plan=SimpleNamespace(verify_steps=lambda prompt, tokens, topk, steps, draft: 7),
        plan=SimpleNamespace(tokens_in=lambda phase: 96),
    )
    step: Any = SimpleNamespace(scenario=scenario, level=level)
    return _planned(job, step, "measure", [1, 2])


@pytest.mark.parametrize(("level", "steps"), [(1, 7), (4, 7), (5, None), (8, None)])
def test_the_plan_holds_up_to_the_threshold(level: int, steps: int | None) -> None:
    assert planned("spec-v2-threshold", level) == steps


@pytest.mark.parametrize("scenario", ["spec-v1", "spec-v2", "spec-v1-fixed"])
def test_other_scenarios_are_planned_at_every_level(scenario: str) -> None:
    assert planned(scenario, 8) == 7
