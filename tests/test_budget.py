from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit import verdict
from kit.budget import ASSUMED_LAUNCH_CV, noise_for, plan_for
from kit.schedule import Clock
from tests.factory import launch_record, level_record, plan, run_data
from tests.test_verdict import CLAIM, SCENARIOS, golden_of, run_of, with_gpu


def clock() -> Clock:
    """Every start takes 20 s, every pass 5 s."""
    config = plan()
    known = Clock(config)
    starts = [launch_record(scenario=s, ready_s=20.0) for s in SCENARIOS]
    passes = [
        level_record(scenario=s, level=c, phase=phase, wall_s=5.0, output_tokens=12 * 48)
        for s in SCENARIOS
        for c in config.levels
        for phase in ("warmup", "measure")
    ]
    known.learn(run_data(passes, launches=starts))
    return known


def test_costs_are_those_of_the_earlier_run() -> None:
    # 3 × (start 20 + 2 levels × 2 warm × 5), 3 × 2 levels × 5
    assert clock().costs() == (3 * (20 + 20), 30)
    assert clock().launch_s() == 3 * 40 + 3 * 30


def test_passes_with_another_amount_of_work_teach_nothing() -> None:
    config = plan()
    known = Clock(config)
    before = known.costs()
    known.learn(run_data([level_record(wall_s=1000.0, output_tokens=5)]))
    assert known.costs() == before


@given(st.floats(200, 20_000))
def test_a_plan_never_takes_longer_than_its_budget(budget: float) -> None:
    found = plan_for(budget, plan(), clock(), golden_of()).plan
    assert found.fits_budget
    assert found.seconds <= budget
    assert found.seconds == pytest.approx(found.launches * (120 + found.sweeps * 30))


def test_more_time_is_more_precise() -> None:
    widths = [
        plan_for(b, plan(), clock(), golden_of()).plan.expected_half_width for b in (200, 600, 1800)
    ]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > widths[-1]


def test_what_does_not_fit_is_said_before_it_starts() -> None:
    found = plan_for(10, plan(), clock(), None)
    assert (found.plan.launches, found.plan.sweeps, found.plan.fits_budget) == (1, 1, False)
    assert math.isinf(found.plan.expected_half_width)
    assert "does not fit" in found.text()
    assert "one launch gives no interval" in found.text()


def test_expected_precision_and_its_noise_are_told() -> None:
    text = plan_for(900, plan(), clock(), golden_of()).text()
    assert "ratios expected to ±" in text
    assert "noise 1.0% between launches and 0.5% between sweeps, golden's" in text


def test_noise_comes_from_golden_then_from_an_earlier_run_then_is_assumed() -> None:
    earlier = run_of(cv=0.03)
    assert noise_for(golden_of(), earlier).source == "golden's"
    measured = noise_for(golden_of(throughput={}), earlier)
    assert earlier.manifest.run_id in measured.source
    assert measured.launch_cv == pytest.approx(0.03, rel=0.6)
    assert noise_for(None, run_of(launches=1)).launch_cv == ASSUMED_LAUNCH_CV


def wide(run: Any, golden: Any) -> list[str]:
    return [w.text() for w in verdict.too_wide(with_gpu(run), golden)]


def test_going_on_is_decided_by_width_and_says_why() -> None:
    noisy = wide(run_of(cv=0.08, launches=2), golden_of(claims=[CLAIM]))
    assert noisy
    assert any("spec-v2/baseline at C=4 is known to ±" in text for text in noisy)
    assert all("is wanted" in text for text in noisy)
    assert wide(run_of(cv=0.002), golden_of(claims=[CLAIM])) == []


def test_a_clear_answer_known_badly_still_goes_on() -> None:
    """Stopping when the answer pleases would favour one answer."""
    assert wide(run_of({"spec-v2": 0.3}, cv=0.08, launches=2), golden_of())


def test_one_launch_has_no_interval_and_invalid_runs_do_not_go_on() -> None:
    golden = golden_of(throughput={}, claims=[CLAIM])
    one = run_of(launches=1)
    only = one.model_copy(
        update={"levels": [r for r in one.levels if r.scenario in ("spec-v2", "baseline")]}
    )
    assert "has no interval yet" in wide(only, golden)[0]
    invalid = only.model_copy(update={"launches": [launch_record(["wrong worker: x"])]})
    assert wide(invalid, golden) == []
    assert wide(only, None) == []


def test_claims_alone_go_on_where_levels_are_not_compared() -> None:
    golden = golden_of(decides="claims", claims=[CLAIM])
    found = wide(run_of(cv=0.08, launches=2), golden)
    assert found
    assert not [text for text in found if "against golden" in text]


def test_the_width_wanted_is_half_the_tolerance() -> None:
    run, golden = with_gpu(run_of(cv=0.02, launches=2)), golden_of()
    listed = {w.what: w for w in verdict.too_wide(run, golden)}
    levels = [v for v in verdict.judge(run, golden).levels if v.ratio and v.tolerance]
    widths = {
        f"{v.scenario} at C={v.level}, against golden,": (
            (v.ratio.high - v.ratio.low) / 2 / v.ratio.value,
            v.tolerance,
        )
        for v in levels
        if v.ratio and v.tolerance and v.ratio.high and v.ratio.low
    }
    assert any(tolerance / 2 < width < tolerance for width, tolerance in widths.values())
    assert {n for n, (width, t) in widths.items() if width >= t / 2} == set(listed)
