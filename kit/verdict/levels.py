"""Judge levels against golden. Pure."""

from __future__ import annotations

import math
from statistics import fmean

from kit import stats
from kit.golden import Golden
from kit.records import LevelRecord, RunData
from kit.verdict.model import Interval, LevelStatus, LevelVerdict

Groups = list[list[float]]


def to_interval(estimate: stats.Estimate) -> Interval:
    """Convert; infinite bounds (too little data) become None."""

    def bound(x: float) -> float | None:
        return x if math.isfinite(x) else None

    return Interval(
        value=estimate.value,
        low=bound(estimate.low),
        high=bound(estimate.high),
        confidence=estimate.confidence,
        n=estimate.n,
    )


def tok_s_groups(run: RunData, scenario: str, level: int) -> Groups:
    """Return throughput as launches of sweeps; passes with failed requests are left out (they are findings)."""
    groups = [[r.tok_s for r in g if not r.failed and r.tok_s > 0] for g in run.grouped(scenario, level)]
    return [g for g in groups if g]


def replicate_groups(run: RunData, scenario: str, levels: list[int]) -> Groups:
    """Return throughput of replicate levels pooled: launches of (sweep, level) passes."""
    merged: dict[int, list[float]] = {}
    for level in levels:
        for g in run.grouped(scenario, level):
            merged.setdefault(g[0].launch, []).extend(r.tok_s for r in g if not r.failed and r.tok_s > 0)
    return [merged[k] for k in sorted(merged) if merged[k]]


def _mean(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return fmean(known) if known else None


def is_replicate(run: RunData, golden: Golden | None, level: int) -> bool:
    """Return whether a level repeats the experiment of a lower one: never more in flight than requests sent."""
    if run.manifest.plan.protocol != "published":
        return False
    start = golden.replicates_from if golden and golden.replicates_from else 30
    return level > start


def level_status(ratio: stats.Estimate, tolerance: float) -> LevelStatus:
    """Return REPRODUCED if the interval lies inside the band, SLOWER or FASTER if outside, else INCONCLUSIVE."""
    where = stats.equivalence(ratio, tolerance)
    if where == "inside":
        return "REPRODUCED"
    if where == "below":
        return "SLOWER"
    if where == "above":
        return "FASTER"
    return "INCONCLUSIVE"


def judge_level(run: RunData, golden: Golden | None, scenario: str, level: int) -> LevelVerdict | None:
    """Judge one scenario at one level, None if it was not measured."""
    records: list[LevelRecord] = run.measured(scenario, level)
    groups = tok_s_groups(run, scenario, level)
    if not groups:
        return None
    reference = golden.reference(scenario, level) if golden else None
    ratio: stats.Estimate | None = None
    tolerance: float | None = None
    status: LevelStatus = "NO REFERENCE"
    if golden and reference:
        cv = stats.combined_cv(
            reference.launch_cv or 0.0, reference.sweep_cv or 0.0, reference.launches, reference.n
        )
        ratio = stats.ratio_to_reference(groups, reference.value, cv, launch_cv=reference.launch_cv)
        tolerance = stats.tolerance(cv, stats.relative_spread(groups), floor=golden.tolerance.floor)
        status = level_status(ratio, tolerance)
    return LevelVerdict(
        scenario=scenario,
        level=level,
        launches=len(groups),
        passes=sum(map(len, groups)),
        tok_s=to_interval(stats.hierarchical_ci(groups)),
        accept_length=_mean([r.accept_length for r in records]),
        planned_accept_length=_mean([r.planned_accept_length for r in records]),
        effective_concurrency=fmean(r.effective_concurrency for r in records),
        step_time_s=_mean([r.step_time_s for r in records]),
        reference=reference.value if reference else None,
        ratio=to_interval(ratio) if ratio else None,
        tolerance=tolerance,
        status=status,
        replicate=is_replicate(run, golden, level),
    )
