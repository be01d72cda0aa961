"""The checks of a run against its golden file; see conftest.py for the options."""

from __future__ import annotations

from typing import Any

import pytest

from kit.verdict.model import ClaimVerdict, LevelVerdict


def test_run_can_be_judged(state: Any) -> None:
    if state.problem:
        pytest.fail(state.problem, pytrace=False)


def test_run_is_valid(state: Any) -> None:
    if state.verdict is None:
        pytest.skip("there is no run to judge")
    bad = [f for f in state.verdict.findings if f.severity == "invalid"]
    if bad:
        text = "\n".join(f"[{f.id}] {f.seen} {f.remedy}" for f in bad)
        pytest.fail(text, pytrace=False)


def test_level(level: LevelVerdict, state: Any) -> None:
    """Absolute throughput, where golden has a number and this machine may be compared with it."""
    if level.ratio is None or level.tolerance is None:
        pytest.skip("golden has no number for this level")
    if state.verdict.decided_by == "claims" or state.verdict.status == "NOT COMPARABLE":
        pytest.skip(state.verdict.comparable)
    if level.status != "REPRODUCED":
        causes = [
            f"\ncause: {c.text}"
            for c in state.verdict.causes
            if (c.scenario, c.level) == (level.scenario, level.level)
        ]
        pytest.fail(
            f"{level.status}: {level.tok_s.value:.1f} tok/s is {level.ratio.text()} of golden's "
            f"{level.reference:g} (tolerance ±{level.tolerance:.1%}){''.join(causes)}",
            pytrace=False,
        )


def test_accept_length(level: LevelVerdict) -> None:
    """Acceptance as the planted pair's plan demands."""
    if level.accept_length is None or level.planned_accept_length is None:
        pytest.skip("no speculation, or no planted pair")
    if abs(level.accept_length - level.planned_accept_length) > 0.1:
        pytest.fail(
            f"accept length {level.accept_length:.2f}, planned {level.planned_accept_length:.2f}",
            pytrace=False,
        )


def test_claim(claim: ClaimVerdict) -> None:
    if claim.status == "not measured":
        pytest.skip("not measured in this run")
    if claim.status not in ("holds", "holds within tolerance"):
        ratio = claim.ratio.text() if claim.ratio else "no ratio"
        pytest.fail(f"{claim.status}: {claim.text}: {ratio}", pytrace=False)
