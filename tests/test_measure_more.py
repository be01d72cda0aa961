"""How a run goes on and how it ends: further launches, the cap, the budget."""

from __future__ import annotations

import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kit.cli import cli
from kit.measure import _another
from kit.runfolder import latest_run, read_run
from kit.schedule import Clock
from tests.factory import plan
from tests.test_reproduce_stub import pairs, stub  # noqa: F401 - fixtures


def job(reasons: list[str], ends_in: float | None = None) -> tuple[Any, list[str]]:
    notes: list[str] = []
    config = plan(launches=2, max_launches=4)
    found = SimpleNamespace(
        plan=config,
        clock=Clock(config),
        more=lambda _: reasons,
        observer=SimpleNamespace(note=notes.append),
        ends_at=None if ends_in is None else time.monotonic() + ends_in,
    )
    return found, notes


@pytest.mark.parametrize(
    ("reasons", "launches", "ends_in", "goes_on", "said"),
    [
        (["a is wide"], 2, None, True, "Launch 3 is added: a is wide."),
        (["a is wide"], 3, None, True, "Launch 4 is added: a is wide."),
        (["a is wide"], 4, None, False, "The cap of 4 launches ends it: a is wide."),
        (["a is wide"], 2, 1.0, False, "Another launch would not fit into the budget: a is wide."),
        (["a is wide"], 2, math.inf, True, "Launch 3 is added: a is wide."),
        (["a", "b", "c", "d", "e"], 2, None, True, "Launch 3 is added: a; b; c; and 2 more."),
    ],
)
def test_going_on_and_stopping_say_why(
    reasons: list[str], launches: int, ends_in: float | None, goes_on: bool, said: str
) -> None:
    made, notes = job(reasons, ends_in)
    assert _another(made, launches) is goes_on
    assert notes == [said]


def test_enough_is_enough() -> None:
    made, notes = job([])
    assert not _another(made, 2)
    assert notes == []


def budgeted(stub: Any, monkeypatch: pytest.MonkeyPatch, budget: str, delay: str) -> Result:  # noqa: F811
    monkeypatch.setenv("STUB_ARGS", f"--delay {delay}")
    args = ["reproduce", "--rig", "cpu", "--port", str(stub.port), "--levels", "1"]
    return CliRunner().invoke(cli, [*args, "-s", "baseline", "--budget", budget])


def test_no_step_starts_after_the_budget(stub: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """One warm pass takes 12 × 0.3 s, so after it the budget of 3 s is spent whatever the machine does."""
    result = budgeted(stub, monkeypatch, "3s", "0.3")
    assert "by estimate that does not fit" in result.output
    assert "The budget is spent" in result.output
    run = read_run(latest_run(stub.runs))  # type: ignore[arg-type]
    assert run.manifest.status == "interrupted"
    assert "budget" in run.manifest.status_detail
    assert len(run.levels) <= 1


def test_precision_is_told_before_the_run(stub: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    result = budgeted(stub, monkeypatch, "61s", "0")
    assert "ratios expected" in result.output or "one launch gives no interval" in result.output
    assert result.output.index("budget") < result.output.index("run folder")


def test_budget_and_counts_exclude_each_other(stub: Any) -> None:  # noqa: F811
    result = stub("--budget", "5m")
    assert result.exit_code == 2
    assert "not both" in result.output


def test_warm_up_requests_may_be_shorter(stub: Any, project: Path) -> None:  # noqa: F811
    rig = project / "scenarios" / "rigs" / "cpu.yaml"
    text = rig.read_text()
    assert "warm_output_tokens" not in text
    rig.write_text(text.replace("repetition: {", "repetition: {warm_output_tokens: 7, "))
    stub("-s", "spec-v2", "--levels", "2", "--launches", "1", "--sweeps", "1")
    folder = latest_run(stub.runs)
    assert folder is not None
    data = read_run(folder)
    asked = {(r.phase, r.asked_tokens, r.completion_tokens) for r in data.requests}
    measured = data.manifest.plan.output_tokens
    assert asked == {("warmup", 7, 7), ("measure", measured, measured)}
    # Planned steps follow the tokens asked for: the stub keeps to the plan, so every request agrees.
    assert all(r.verify_steps == r.planned_verify_steps for r in data.requests)
