from __future__ import annotations

from typing import Any

import pytest

from kit.golden import golden_for
from kit.records import FailureRecord, RunData
from kit.verdict.guards import all_findings
from kit.verdict.levels import judge_levels
from tests.factory import launch_record, level_record, manifest, request_record, run_data


def ids(run: RunData) -> dict[str, str]:
    return {f.id: f.severity for f in all_findings(run, None)}


def test_a_sound_run_has_no_findings() -> None:
    assert ids(run_data([level_record()], launches=[launch_record()])) == {}


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"completion_tokens": 47}, "token-count"),
        ({"completion_tokens": 49}, "token-count"),
        ({"completion_tokens": None}, "token-count"),
        ({"cached_tokens": 16}, "cached-tokens"),
        ({"mismatch_at": 0}, "not-exact"),
        ({"error": "timeout", "error_detail": "no answer"}, "request-errors"),
        ({"checked": False}, "not-checked"),
    ],
)
def test_a_bad_request_makes_the_run_invalid(change: dict[str, Any], finding: str) -> None:
    run = run_data([level_record()], requests=[request_record(), request_record(**change)])
    assert ids(run) == {finding: "invalid"}


def test_a_server_that_does_not_tell_of_its_cache_is_not_taken_to_have_none() -> None:
    silent = request_record(cached_tokens=None)
    run = run_data([level_record(cached_tokens=None)], requests=[request_record(), silent])
    assert ids(run) == {"cache-unknown": "warning"}
    # A request that failed told nothing at all; that it failed is what counts.
    failed = request_record(cached_tokens=None, error="timeout", error_detail="no answer")
    assert ids(run_data([level_record()], requests=[failed])) == {"request-errors": "invalid"}


def test_warm_up_requests_may_be_cached_but_must_be_exact() -> None:
    warm = {"phase": "warmup"}
    assert ids(run_data([level_record()], requests=[request_record(cached_tokens=9, **warm)])) == {}
    run = run_data([level_record()], requests=[request_record(mismatch_at=3, **warm)])
    assert ids(run) == {"not-exact": "invalid"}


@pytest.mark.parametrize(
    ("problem", "finding"),
    [
        ("wrong worker: v1 is wanted and v2 runs", "wrong-worker"),
        ("wrong engine: ...", "wrong-engine"),
        ("missing patch 0002, without which this scenario is void", "missing-patch"),
        ("running requests are capped at 4, below the highest level C=8", "wrong-setting"),
    ],
)
def test_an_unproven_server_makes_the_run_invalid(problem: str, finding: str) -> None:
    run = run_data([level_record()], launches=[launch_record([problem])])
    assert ids(run) == {finding: "invalid"}


@pytest.mark.parametrize(
    ("measured", "invalid"), [(2.72, False), (2.64, False), (2.60, True), (2.90, True)]
)
def test_accept_length_off_the_plan(measured: float, invalid: bool) -> None:
    level = level_record(scenario="spec-v2", accept_length=measured, planned_accept_length=2.73)
    assert ids(run_data([level])) == ({"accept-length": "invalid"} if invalid else {})


def test_released_v1_losing_acceptance_under_cuda_graphs_is_a_warning_only_there() -> None:
    level = level_record(
        scenario="spec-v1",
        level=30,
        accept_length=2.8,
        planned_accept_length=3.4,
        effective_concurrency=27,
    )
    gpu = manifest("h200")
    assert ids(run_data([level], manifest=gpu)) == {"v1-acceptance-loss": "warning"}
    assert ids(run_data([level])) == {"accept-length": "invalid"}
    more = level.model_copy(update={"accept_length": 3.9})
    assert ids(run_data([more], manifest=gpu)) == {"accept-length": "invalid"}
    fixed = level.model_copy(update={"scenario": "spec-v1-fixed"})
    assert ids(run_data([fixed], manifest=gpu)) == {"accept-length": "invalid"}


def test_client_bound_pass_is_invalid() -> None:
    level = level_record(client={"client_bound": True, "bound_reason": "loop lag"})
    assert ids(run_data([level])) == {"client-bound": "invalid"}


def test_a_few_disturbed_passes_are_a_warning_and_most_of_them_void_the_level() -> None:
    def run(bound: int, count: int) -> RunData:
        client = {"client_bound": True, "bound_reason": "loop lag"}
        return run_data(
            [
                level_record(sweep=i, **({"client": client} if i < bound else {}))
                for i in range(count)
            ]
        )

    assert ids(run(1, 6)) == {"client-disturbed": "warning"}
    assert ids(run(3, 6)) == {"client-bound": "invalid"}


def test_concurrency_never_reached_is_invalid_but_one_thin_pass_is_not() -> None:
    thin = level_record(level=4, effective_concurrency=1.2)
    assert ids(run_data([thin])) == {"concurrency-capped": "invalid"}
    full = level_record(level=4, effective_concurrency=3.8, sweep=1)
    assert ids(run_data([thin, full])) == {}


def test_thirty_requests_cannot_fill_250_slots_and_that_is_no_cap() -> None:
    assert ids(run_data([level_record(level=250, requests=30, effective_concurrency=25)])) == {}


def test_a_dead_server_is_told_with_where_and_what_to_do() -> None:
    failure = FailureRecord(
        t=1,
        scenario="spec-v1",
        launch=0,
        sweep=2,
        level=4,
        sentence="The server was ended by SIGKILL.",
        remedy="More memory.",
    )
    (finding,) = all_findings(run_data([level_record()], failures=[failure]), None)
    assert (finding.id, finding.severity, finding.remedy) == (
        "server-died",
        "invalid",
        "More memory.",
    )
    assert "sweep 2 at C=4" in finding.seen
    assert "SIGKILL" in finding.seen


def test_an_empty_run_is_invalid() -> None:
    assert ids(run_data([], requests=[])) == {"nothing-measured": "invalid"}


def test_interrupted_and_truncated_are_warnings() -> None:
    run = run_data([level_record()], manifest=manifest(status="interrupted"), truncated_lines=1)
    assert ids(run) == {"incomplete": "warning", "truncated": "warning"}


def test_every_finding_says_why_and_what_to_do() -> None:
    golden = golden_for("rtx-pro-6000-x8")
    bad = request_record(error="x", error_detail="y")
    run = run_data(
        [
            level_record(client={"client_bound": True}),
            level_record(level=4, effective_concurrency=1.0),
        ],
        requests=[
            bad,
            request_record(mismatch_at=1, cached_tokens=2, completion_tokens=1),
            request_record(checked=False),
        ],
        launches=[launch_record(["wrong worker: a"])],
        truncated_lines=2,
    )
    found = all_findings(run, golden)
    assert len({f.id for f in found}) == 9
    for f in found:
        assert f.seen.endswith((".", "}")) or f.seen
        assert f.why.endswith(".") or f.why.endswith(")")
        assert f.remedy


def test_outliers_are_noted_and_stay_in_the_figures() -> None:
    rows = [level_record(sweep=i, tok_s=100 + i / 10) for i in range(5)]
    far = level_record(sweep=5, tok_s=70)
    assert ids(run_data(rows)) == {}
    run = run_data([*rows, far])
    assert ids(run) == {"outlier": "note"}
    assert [v.passes for v in judge_levels(run, None)] == [6]
    # Far by the spread of the others, and nothing that matters.
    assert ids(run_data([*rows, level_record(sweep=5, tok_s=101.5)])) == {}
