"""Judge levels against golden. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from kit import stats
from kit.golden import Golden, Reference
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
    groups = [
        [r.tok_s for r in g if not r.failed and r.tok_s > 0] for g in run.grouped(scenario, level)
    ]
    return [g for g in groups if g]


def noise_beside(run: RunData, level: int, judged: Sequence[str]) -> list[stats.Noise]:
    """Return the noise of the other scenarios at ``level``: one machine's starts vary alike, and more data help."""
    others = (tok_s_groups(run, s, level) for s in run.scenarios() if s not in judged)
    return [noise for groups in others if groups and (noise := stats.noise_of(groups))]


def noise_beside_golden(golden: Golden, level: int, scenario: str) -> list[stats.Noise]:
    """Return the noise that golden recorded for its other scenarios at ``level``."""
    others = (golden.reference(s, level) for s in golden.throughput if s != scenario)
    return [noise for r in others if r and (noise := noisy_reference(r).noise)]


def noisy_reference(reference: Reference, value: float | None = None) -> stats.Reference:
    """Return a golden number with its noise; ``value`` puts another number of the same passes in its place."""
    return stats.Reference(
        reference.value if value is None else value,
        reference.launches,
        max(reference.n, reference.launches),
        reference.launch_cv,
        reference.sweep_cv,
    )


def replicate_groups(run: RunData, scenario: str, levels: list[int]) -> Groups:
    """Return throughput of replicate levels pooled: launches of (sweep, level) passes."""
    merged: dict[int, list[float]] = {}
    for level in levels:
        for g in run.grouped(scenario, level):
            merged.setdefault(g[0].launch, []).extend(
                r.tok_s for r in g if not r.failed and r.tok_s > 0
            )
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


CALL_STATUS: dict[stats.Call, LevelStatus] = {
    "same": "REPRODUCED",
    "lower": "SLOWER",
    "higher": "FASTER",
    "undecided": "INCONCLUSIVE",
}


def level_ratios(
    run: RunData, golden: Golden | None
) -> list[tuple[LevelVerdict, stats.Estimate | None]]:
    """Return every measured level, not yet called, with its ratio to golden (None without a reference)."""
    return [
        draft
        for scenario in run.scenarios()
        for level in run.manifest.plan.levels
        if (draft := _draft(run, golden, scenario, level))
    ]


def judge_levels(run: RunData, golden: Golden | None) -> list[LevelVerdict]:
    """Judge every measured level. SLOWER and FASTER are tested over all of them together (Holm), replicates apart."""
    drafts = level_ratios(run, golden)
    called: dict[tuple[str, int], stats.Call] = {}
    for replicates in (False, True):
        family = [d for d in drafts if d[1] is not None and d[0].replicate == replicates]
        ratios = {(v.scenario, v.level): r for v, r in family if r}
        tolerances = {(v.scenario, v.level): v.tolerance or 0.0 for v, _ in family}
        if ratios:
            called |= stats.calls(ratios, tolerances)
    return [
        v.model_copy(update={"status": CALL_STATUS[called[(v.scenario, v.level)]]}) if r else v
        for v, r in drafts
    ]


def _draft(
    run: RunData, golden: Golden | None, scenario: str, level: int
) -> tuple[LevelVerdict, stats.Estimate | None] | None:
    """Return one level with its ratio to golden, not yet called; None if it was not measured."""
    records: list[LevelRecord] = run.measured(scenario, level)
    groups = tok_s_groups(run, scenario, level)
    if not groups:
        return None
    reference = golden.reference(scenario, level) if golden else None
    beside = noise_beside(run, level, [scenario])
    ratio: stats.Estimate | None = None
    tolerance: float | None = None
    if golden and reference:
        shared = [*beside, *noise_beside_golden(golden, level, scenario)]
        ratio = stats.ratio_to_reference(groups, noisy_reference(reference), beside=shared)
        tolerance = stats.tolerance_for(ratio, floor=golden.tolerance.floor)
    verdict = LevelVerdict(
        scenario=scenario,
        level=level,
        launches=len(groups),
        passes=sum(map(len, groups)),
        tok_s=to_interval(stats.hierarchical_ci(groups, beside=beside)),
        accept_length=_mean([r.accept_length for r in records]),
        planned_accept_length=_mean([r.planned_accept_length for r in records]),
        expected_accept_length=run.manifest.expected_accept_length.get(scenario),
        effective_concurrency=fmean(r.effective_concurrency for r in records),
        step_time_s=_mean([r.step_time_s for r in records]),
        reference=reference.value if reference else None,
        ratio=to_interval(ratio) if ratio else None,
        tolerance=tolerance,
        status="NO REFERENCE",
        replicate=is_replicate(run, golden, level),
    )
    return verdict, ratio
