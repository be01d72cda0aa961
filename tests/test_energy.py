"""Joules per token in the verdict and the reports: the sum is right, and what it leaves out is told."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console

from kit.records import RunData
from kit.report.html.page import render
from kit.report.markdown import render_markdown
from kit.report.text import print_verdict
from kit.telemetry import GpuSample, TelemetryHeader, TelemetrySample
from kit.verdict import Verdict, judge
from tests.factory import level_record, manifest, run_data

EVERY_SECOND = tuple(range(22))
WITH_A_GAP = (*range(14), 18, 19, 20, 21)


def run_of(times: Sequence[int], failed: int = 0, header: Any = None, **gpu: Any) -> RunData:
    """Two passes, from 0 to 10 and from 10 to 20, of 500 tokens each, and two GPUs where one is given."""
    passes = [
        level_record(t=10.0, wall_s=10.0, output_tokens=500),
        level_record(t=20.0, wall_s=10.0, output_tokens=500, sweep=1, failed=failed),
    ]
    samples = [
        TelemetrySample(
            t=t,
            gpus=[
                GpuSample(index=i, **{k: v(t) if callable(v) else v for k, v in gpu.items()})
                for i in range(2)
                if gpu
            ],
        )
        for t in times
    ]
    return run_data(
        passes,
        telemetry=samples,
        telemetry_header=header or TelemetryHeader(t=0, interval_s=1, cpus=2),
        manifest=manifest(),
    )


def reports(run: RunData, verdict: Verdict, folder: Path) -> list[str]:
    out = io.StringIO()
    print_verdict(verdict, Console(file=out, width=200))
    return [out.getvalue(), render_markdown(run, verdict), render(run, verdict, None, folder)]


def test_joules_and_tokens_of_all_passes_and_gpus_are_added(tmp_path: Path) -> None:
    run = run_of(EVERY_SECOND, power_w=250.0)
    verdict = judge(run, None)
    (energy,) = verdict.energy
    # Two GPUs of 250 W over 20 s.
    assert energy.joules == pytest.approx(10_000)
    assert (energy.tokens, energy.passes, energy.gap_s) == (1000, 2, 0)
    assert energy.joules_per_token == pytest.approx(10)
    assert verdict.energy_unavailable == ""
    for text in reports(run, verdict, tmp_path):
        assert "J/token" in text
        assert "2 GPUs, power × time" in text
        assert "≥" not in text
    kept = orjson.loads(verdict.model_dump_json())
    assert kept["energy"][0]["joules_per_token"] == pytest.approx(10)


def test_a_gap_makes_a_lower_bound_and_every_report_says_so(tmp_path: Path) -> None:
    run = run_of(WITH_A_GAP, power_w=250.0)
    verdict = judge(run, None)
    (energy,) = verdict.energy
    # Of the 20 s, the five between the samples at 13 and 18 are not in it.
    assert energy.gap_s == pytest.approx(5)
    assert energy.joules == pytest.approx(7_500)
    for text in reports(run, verdict, tmp_path):
        assert "≥ 7.5" in text
        assert "5.0 s of 20.0 s" in text
        assert "the true figure is higher" in text


def test_a_gpu_that_tells_no_power_for_a_while_is_a_gap_too() -> None:
    verdict = judge(
        run_of(EVERY_SECOND, power_w=lambda t: None if 3 < t < 8 else 250.0),
        None,
    )
    (energy,) = verdict.energy
    assert energy.gap_s == pytest.approx(5)
    assert energy.joules == pytest.approx(7_500)


def test_a_counter_runs_on_over_a_gap() -> None:
    (energy,) = judge(run_of(WITH_A_GAP, energy_mj=lambda t: 100_000 * t), None).energy
    assert energy.gap_s == 0
    assert energy.joules == pytest.approx(2 * 2_000)
    assert "counter" in energy.source


def test_a_pass_with_failed_requests_is_left_out_and_counted(tmp_path: Path) -> None:
    run = run_of(EVERY_SECOND, failed=1, power_w=250.0)
    verdict = judge(run, None)
    (energy,) = verdict.energy
    assert (energy.passes, energy.passes_without, energy.tokens) == (1, 1, 500)
    assert energy.joules_per_token == pytest.approx(10)
    for text in reports(run, verdict, tmp_path):
        assert "1 of 2 passes" in text


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (run_of(()), "the run has no telemetry"),
        (run_of(EVERY_SECOND, temperature_c=50), "neither energy nor power"),
        (
            run_of(
                EVERY_SECOND,
                header=TelemetryHeader(
                    t=0,
                    interval_s=1,
                    cpus=2,
                    unavailable={"gpus": "no GPU is used", "cpu_energy_uj": "no RAPL counter"},
                ),
            ),
            "no GPU is used; no RAPL counter",
        ),
    ],
)
def test_without_joules_every_report_says_why(run: RunData, why: str, tmp_path: Path) -> None:
    verdict = judge(run, None)
    assert verdict.energy == []
    assert why in verdict.energy_unavailable
    for text in reports(run, verdict, tmp_path):
        assert "Joules per token are not available here" in text
        assert why in text
        assert "J/token" not in text


def test_a_verdict_from_before_energy_is_still_read() -> None:
    old = judge(run_of(EVERY_SECOND, power_w=1.0), None).model_dump(mode="json")
    del old["energy"], old["energy_unavailable"]
    assert Verdict.model_validate(old).energy == []


def test_a_verdict_without_levels_says_nothing_of_energy(tmp_path: Path) -> None:
    run = run_of(EVERY_SECOND)
    verdict = judge(run, None)
    assert verdict.energy_unavailable
    silent = verdict.model_copy(update={"levels": []})
    for report in reports(run, silent, tmp_path):
        assert "Joules per token are not available" not in report
