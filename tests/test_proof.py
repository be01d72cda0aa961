from __future__ import annotations

from typing import Any

import pytest

from kit.proof import log_evidence, patches_in, prove
from kit.scenarios import load_rig, load_scenario

V1 = {
    "version": "0.5.12.post1",
    "disable_overlap_schedule": True,
    "speculative_algorithm": "EAGLE3",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 4,
    "speculative_num_draft_tokens": 8,
    "internal_states": [{"effective_max_running_requests_per_dp": 32}],
}
V2 = {
    **V1,
    "disable_overlap_schedule": False,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}
PLAIN = {
    "version": "0.5.12.post1",
    "disable_overlap_schedule": False,
    "speculative_algorithm": None,
    "internal_states": [{"effective_max_running_requests_per_dp": 32}],
}


def problems(name: str, info: dict[str, Any], **options: Any) -> list[str]:
    return prove(load_scenario(name), load_rig("cpu"), info, **options).problems


@pytest.mark.parametrize(("name", "info"), [("baseline", PLAIN), ("spec-v1", V1), ("spec-v2", V2)])
def test_right_worker_is_proven(name: str, info: dict[str, Any]) -> None:
    assert problems(name, info) == []


@pytest.mark.parametrize(
    ("name", "info", "said"),
    [
        ("spec-v1", {**V1, "disable_overlap_schedule": False}, "v1 is wanted and v2 runs"),
        ("spec-v2", {**V2, "disable_overlap_schedule": True}, "v2 is wanted and v1 runs"),
        ("baseline", V2, "plain is wanted and v2 runs"),
        ("spec-v2", PLAIN, "v2 is wanted and plain runs"),
        ("spec-v2", {**V2, "disable_overlap_schedule": None}, "v2 is wanted and unknown runs"),
        ("spec-v2", {**V2, "version": "0.5.14"}, "wrong engine"),
        ("spec-v1", {**V1, "speculative_eagle_topk": 1}, "speculative eagle_topk is 1, not 4"),
        (
            "spec-v2",
            {**V2, "internal_states": [{"effective_max_running_requests_per_dp": 4}]},
            "capped at 4",
        ),
        ("spec-v2", {**V2, "internal_states": []}, "does not say how many"),
        ("spec-v2", {}, "unknown runs|plain runs"),
    ],
)
def test_mismatch_is_named(name: str, info: dict[str, Any], said: str) -> None:
    found = problems(name, info)
    assert any(part in p for p in found for part in said.split("|")), found


def test_missing_patch_is_named_and_a_live_one_is_not() -> None:
    scenario = load_scenario("spec-v1").model_copy(update={"patches": ["0002"]})
    rig = load_rig("cpu")
    assert any("missing patch 0002" in p for p in prove(scenario, rig, V1).problems)
    line = "[2026-12-01] kit patches live: 0001 0002"
    assert prove(scenario, rig, V1, [line]).problems == []
    assert prove(scenario, rig, V1, live_patches=["0002"]).problems == []


def test_patches_and_evidence_are_read_from_the_log() -> None:
    lines = ["x", "kit patches live: 0001, 0003", "kit patches live: 0001, 0003", "other"]
    assert patches_in(lines) == ["0001", "0003"]
    assert log_evidence(lines) == ["kit patches live: 0001, 0003"]


def test_a_rig_may_ask_for_patches_and_for_lines_in_the_log() -> None:
    rig = load_rig("cpu")
    wants = rig.server.model_copy(
        update={"patches": ["0004"], "log_must_show": ["kit 0004: torch symm mem is live"]}
    )
    rig = rig.model_copy(update={"server": wants})
    scenario = load_scenario("spec-v1")
    lines = [
        "kit patches live: 0001 0004",
        "TP0] kit 0004: torch symm mem is live on SM120: two-shot",
    ]
    assert prove(scenario, rig, V1, lines).problems == []
    (problem,) = prove(scenario, rig, V1, lines[:1]).problems
    assert "does not show 'kit 0004: torch symm mem is live'" in problem
    problems = prove(scenario, rig, V1, lines[1:]).problems
    assert any("missing patch 0004" in p for p in problems)
    assert log_evidence(lines) == lines
