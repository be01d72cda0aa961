from __future__ import annotations

from typing import Any

import pytest

from kit.verdict.compare import compare_runs
from tests.factory import launch_record
from tests.test_verdict import run_of


def named(seed: int = 0, scale: Any = None, **changes: Any) -> Any:
    return run_of(scale, seed=seed, launches=4, **changes)


def test_the_same_system_twice_is_not_worse() -> None:
    found = compare_runs(named(1), named(2))
    assert (found.status, found.exit_code) == ("NOT WORSE", 0)
    assert {c.status for c in found.levels} == {"REPRODUCED"}


@pytest.mark.parametrize(
    ("changes", "main"),
    [
        ({"step": 1.3}, "step time"),
        ({"accept": 0.7}, "accept length"),
        ({"flying": 0.7}, "effective concurrency"),
    ],
)
def test_a_worse_run_is_named_with_its_cause(changes: dict[str, float], main: str) -> None:
    found = compare_runs(named(1), named(2, **changes))
    assert (found.status, found.exit_code) == ("WORSE", 1)
    causes = [c.cause for c in found.levels if c.status == "SLOWER"]
    assert causes
    assert {c.main for c in causes if c} == {main}
    assert any("cause: " in line for line in found.lines())
    assert found.lines()[-1].startswith("WORSE  ")


def test_faster_is_not_worse() -> None:
    found = compare_runs(named(1), named(2, {"spec-v2": 1.4}))
    assert (found.status, found.exit_code) == ("NOT WORSE", 0)
    assert {c.scenario for c in found.levels if c.status == "FASTER"} == {"spec-v2"}


def test_noise_is_inconclusive() -> None:
    assert compare_runs(run_of(cv=0.2, seed=1), run_of(cv=0.2, seed=2)).exit_code == 4


def test_an_invalid_run_is_not_compared() -> None:
    bad = named(2).model_copy(update={"launches": [launch_record(["wrong worker: x"])]})
    found = compare_runs(named(1), bad)
    assert (found.status, found.exit_code) == ("INVALID", 3)


def test_levels_with_other_numbers_of_requests_are_other_experiments() -> None:
    other = named(2)
    config = other.manifest.plan.model_copy(update={"requests": {1: 99, 4: 99}})
    other = other.model_copy(
        update={"manifest": other.manifest.model_copy(update={"plan": config})}
    )
    found = compare_runs(named(1), other)
    assert (found.status, found.exit_code) == ("NOTHING IN COMMON", 5)


def test_other_conditions_are_told() -> None:
    other = named(2)
    changed = other.manifest.model_copy(
        update={"fingerprint_hash": "1", "fingerprint": {"driver": "x"}, "pair": {"kind": "paths"}}
    )
    found = compare_runs(named(1), other.model_copy(update={"manifest": changed}))
    assert found.differences == ["machine or software: driver", "model pair"]
    assert compare_runs(named(1), named(2)).differences == []
