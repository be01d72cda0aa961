from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit import verdict
from kit.golden import Claim, Factors, Golden, Provenance, Reference
from kit.records import LevelRecord, RunData
from kit.verdict.claims import status_of
from kit.verdict.model import EXIT_CODES, Interval
from tests.factory import launch_record, level_record, manifest, plan, run_data

SCENARIOS = {"baseline": 100.0, "spec-v1": 150.0, "spec-v2": 300.0}


def run_of(
    scale: dict[str, float] | None = None,
    *,
    launches: int = 3,
    sweeps: int = 3,
    levels: tuple[int, ...] = (1, 4),
    cv: float = 0.01,
    seed: int = 0,
    step: float = 1.0,
    accept: float = 1.0,
    flying: float = 1.0,
    protocol: str = "steady",
    **changes: Any,
) -> RunData:
    """A run whose throughput is the reference's times ``scale``, made of factors that multiply to it."""
    rng = np.random.default_rng(seed)
    records: list[LevelRecord] = []
    for launch, name in itertools.product(range(launches), SCENARIOS):
        start = 1 + cv * rng.standard_normal()
        for sweep, level in itertools.product(range(sweeps), levels):
            noise = start * (1 + cv / 2 * rng.standard_normal())
            length = None if name == "baseline" else 2.7 * accept
            concurrency = level * flying
            step_time = (1.0 if length is None else 2.7) / SCENARIOS[name] * step / noise
            step_time /= (scale or {}).get(name, 1.0)
            tok_s = concurrency * (length or 1.0) / step_time
            records.append(
                level_record(
                    scenario=name,
                    launch=launch,
                    sweep=sweep,
                    level=level,
                    tok_s=tok_s,
                    effective_concurrency=concurrency,
                    accept_length=length,
                    planned_accept_length=length,
                    step_time_s=step_time,
                    requests=max(12, level),
                )
            )
    config = plan(levels=list(levels), protocol=protocol, requests=dict.fromkeys(levels, 30))
    data: dict[str, Any] = {
        "launches": [launch_record()],
        "manifest": manifest("h200", plan=config),
    }
    return run_data(records, **{**data, **changes})


def golden_of(run: RunData | None = None, **changes: Any) -> Golden:
    levels = (run or run_of()).manifest.plan.levels
    throughput = {
        name: {
            level: Reference(value=base * level, n=9, launches=3, launch_cv=0.01, sweep_cv=0.005)
            for level in levels
        }
        for name, base in SCENARIOS.items()
    }
    factors = {
        name: {
            level: Factors(
                effective_concurrency=level,
                accept_length=None if name == "baseline" else 2.7,
                step_time_s=(1.0 if name == "baseline" else 2.7) / base,
            )
            for level in levels
        }
        for name, base in SCENARIOS.items()
    }
    data: dict[str, Any] = {
        "rig": "h200",
        "source": "measured",
        "provenance": Provenance(text="made up"),
        "protocol": "steady",
        "throughput": throughput,
        "factors": factors,
    }
    return Golden(**{**data, **changes})


def with_gpu(run: RunData) -> RunData:
    """Let the run's machine be what the rig describes."""
    gpu = {"name": "NVIDIA H200", "memory_mib": 1}
    fingerprint = {
        "cpu_model": "x",
        "cpu_cores": 1,
        "cpu_flags": [],
        "memory_gib": 1,
        "memory_limit_gib": None,
        "kernel": "6",
        "os": "x",
        "virtualised": False,
        "python": "3",
        "packages": {},
        "driver": "580",
        "gpus": [gpu],
        "topology": [],
    }
    return run.model_copy(
        update={"manifest": run.manifest.model_copy(update={"fingerprint": fingerprint})}
    )


def judge(run: RunData, golden: Golden | None) -> verdict.Verdict:
    return verdict.judge(with_gpu(run), golden)


CLAIM = Claim(
    id="c",
    text="v2 is 3 times the baseline",
    numerator="spec-v2",
    denominator="baseline",
    levels=[1, 4],
    at_least=2.8,
)


def test_unchanged_system_is_reproduced() -> None:
    result = judge(run_of(), golden_of(claims=[CLAIM]))
    assert (result.status, result.exit_code) == ("REPRODUCED", 0)
    assert {v.status for v in result.levels} == {"REPRODUCED"}
    assert [c.status for c in result.claims] == ["holds"]
    assert result.causes == []


@pytest.mark.parametrize(("scale", "status"), [(0.8, "SLOWER"), (1.25, "FASTER")])
def test_changed_scenario_is_named(scale: float, status: str) -> None:
    result = judge(run_of({"spec-v2": scale}), golden_of())
    assert (result.status, result.exit_code) == (status, 1)
    assert {(v.scenario, v.status) for v in result.levels if v.status != "REPRODUCED"} == {
        ("spec-v2", status)
    }
    assert "spec-v2 at C=1" in result.headline


def test_one_launch_of_noise_is_inconclusive() -> None:
    result = judge(run_of(cv=0.15, launches=2), golden_of())
    assert (result.status, result.exit_code) == ("INCONCLUSIVE", 4)
    assert verdict.too_wide(with_gpu(run_of(cv=0.15, launches=2)), golden_of())


def test_enough_data_need_no_more() -> None:
    assert not verdict.too_wide(with_gpu(run_of()), golden_of(claims=[CLAIM]))


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({"step": 1.3}, "step time"),
        ({"accept": 0.7}, "accept length"),
        ({"flying": 0.7}, "effective concurrency"),
    ],
)
def test_the_factor_that_moved_is_the_cause(changes: dict[str, float], factor: str) -> None:
    result = judge(run_of(**changes), golden_of())  # type: ignore[arg-type]
    assert result.status == "SLOWER"
    assert result.causes
    for cause in result.causes:
        moved = [c.factor for c in cause.factors if c.moved]
        if factor == "accept length" and cause.scenario == "baseline":
            continue
        assert moved == [factor], cause.text
        assert factor in cause.text
        assert abs(cause.product_error) < 0.01


def test_factors_that_do_not_multiply_are_a_finding() -> None:
    run = run_of()
    levels = [r.model_copy(update={"tok_s": r.tok_s * 1.05}) for r in run.levels]
    result = judge(run.model_copy(update={"levels": levels}), golden_of())
    assert "factors-do-not-multiply" in {f.id for f in result.findings}


def test_invalid_comes_before_everything() -> None:
    run = run_of({"spec-v2": 0.5})
    bad = run.model_copy(
        update={"launches": [launch_record(["wrong worker: v2 is wanted and v1 runs"])]}
    )
    for golden in (golden_of(), None):
        result = judge(bad, golden)
        assert (result.status, result.exit_code) == ("INVALID", 3)
        assert "wrong worker" in result.headline


def test_without_golden_file_nothing_is_compared() -> None:
    result = judge(run_of(), None)
    assert (result.status, result.exit_code) == ("NOT COMPARABLE", 5)
    assert {v.status for v in result.levels} == {"NO REFERENCE"}


def test_another_machine_is_not_comparable_and_claims_are_still_judged() -> None:
    run = run_of({"spec-v2": 0.5, "baseline": 0.5, "spec-v1": 0.5})
    result = verdict.judge(run, golden_of(claims=[CLAIM]))  # no GPU in its fingerprint
    assert (result.status, result.exit_code) == ("NOT COMPARABLE", 5)
    assert [c.status for c in result.claims] == ["holds"]
    assert "REPRODUCED" in result.headline


@pytest.mark.parametrize("changes", [{"protocol": "published"}, {"output_tokens": 7}])
def test_another_protocol_is_not_comparable(changes: dict[str, Any]) -> None:
    assert judge(run_of(), golden_of(**changes)).status == "NOT COMPARABLE"


def test_claims_decide_where_golden_says_so() -> None:
    slow_machine = run_of(dict.fromkeys(SCENARIOS, 0.3))
    golden = golden_of(decides="claims", claims=[CLAIM])
    assert judge(slow_machine, golden).status == "REPRODUCED"
    lost = judge(run_of({"spec-v2": 0.5}), golden)
    assert (lost.status, lost.exit_code) == ("SLOWER", 1)
    too_good = Claim(**{**CLAIM.model_dump(), "at_least": None, "at_most": 2.0})
    assert judge(run_of(), golden_of(decides="claims", claims=[too_good])).status == "FASTER"


def test_claim_about_a_scenario_that_was_not_run_is_not_measured() -> None:
    run = run_of()
    partial = run.model_copy(update={"levels": [r for r in run.levels if r.scenario != "spec-v2"]})
    result = judge(partial, golden_of(decides="claims", claims=[CLAIM]))
    assert [c.status for c in result.claims] == ["not measured"]
    assert result.status == "INCONCLUSIVE"


def test_replicates_are_marked_and_do_not_count_twice() -> None:
    run = run_of(levels=(30, 70, 250), protocol="published")
    golden = golden_of(run, protocol="published", replicates_from=30)
    result = judge(run, golden)
    assert {(v.level, v.replicate) for v in result.levels} == {(30, False), (70, True), (250, True)}
    assert "3 levels" in result.headline


def test_replicate_levels_of_a_claim_are_pooled() -> None:
    run = run_of(levels=(30, 70, 250), protocol="published")
    claim = Claim(**{**CLAIM.model_dump(), "levels": [30, 70, 250], "replicates": True})
    golden = golden_of(run, protocol="published", replicates_from=30, claims=[claim])
    (judged,) = judge(run, golden).claims
    assert judged.per_level == {}
    assert judged.status == "holds"


@pytest.mark.parametrize(
    ("low", "high", "status"),
    [
        (2.41, 2.5, "holds"),
        (2.35, 2.5, "holds within tolerance"),
        (2.2, 2.5, "open"),
        (2.0, 2.2, "refuted"),
        (2.2, 2.27, "refuted"),
        (None, None, "open"),
    ],
)
def test_status_of_a_claim(low: float | None, high: float | None, status: str) -> None:
    claim = Claim(**{**CLAIM.model_dump(), "at_least": 2.4})
    value = 2.4 if low is None or high is None else (low + high) / 2
    assert status_of(Interval(value=value, low=low, high=high), claim, 0.05) == status


@given(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0.01, 0.5))
def test_a_claim_is_never_both_held_and_refuted(
    a: float, b: float, bound: float, tolerance: float
) -> None:
    low, high = sorted((a, b))
    least = Claim(**{**CLAIM.model_dump(), "at_least": bound})
    status = status_of(Interval(value=(low + high) / 2, low=low, high=high), least, tolerance)
    if status == "holds":
        assert low >= bound
    elif status == "refuted":
        assert high < bound
    elif status == "holds within tolerance":
        assert low >= bound * (1 - tolerance)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([0.5, 0.9, 1.0, 1.1, 2.0]),
    st.sampled_from([0.0, 0.01, 0.1]),
    st.integers(1, 3),
    st.integers(0, 9),
)
def test_every_run_gets_a_verdict_with_its_exit_code(
    scale: float, cv: float, launches: int, seed: int
) -> None:
    run = run_of({"spec-v2": scale}, cv=cv, launches=launches, sweeps=2, seed=seed)
    result = judge(run, golden_of(claims=[CLAIM]))
    assert result.exit_code == EXIT_CODES[result.status]
    assert result.headline
    assert verdict.Verdict.model_validate_json(result.model_dump_json()) == result


def test_the_factor_that_explains_most_is_named_first() -> None:
    for cause in judge(run_of(step=1.15, accept=0.6), golden_of()).causes:
        if cause.scenario != "baseline":
            assert cause.main == "accept length", cause.text
            assert cause.text.index("accept length is 0.6") < cause.text.index("step time is 1.1")
            shares = [c.share for c in cause.factors if c.share is not None]
            assert sum(shares) == pytest.approx(1)


def test_a_single_launch_is_judged_by_the_noise_that_golden_recorded_for_every_scenario() -> None:
    run, golden = run_of(launches=1), golden_of()
    alone = golden.model_copy(update={"throughput": {"spec-v2": golden.throughput["spec-v2"]}})

    def width(of: Golden) -> float:
        (found,) = (
            v.ratio for v in judge(run, of).levels if (v.scenario, v.level) == ("spec-v2", 4)
        )
        assert found
        assert found.high is not None
        assert found.low is not None
        return found.high - found.low

    assert width(golden) < width(alone)
