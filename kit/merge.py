"""Several runs of one rig as one: their launches, one after another. Pure.

A golden file wants the noise between launches, and launches need not be in one run: two short runs on different
days say more about it than two launches of one hour.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from kit.errors import UserError
from kit.records import LevelRecord, RequestRecord, RunData

# What must be the same for launches of two runs to be repetitions of each other.
_PLAN_FIELDS = ("protocol", "output_tokens", "warm_output_tokens", "input_tokens", "stream")


def _same(runs: Sequence[RunData], what: str, values: Sequence[object]) -> None:
    for run, value in zip(runs, values, strict=True):
        if value != values[0]:
            raise UserError(
                f"{run.manifest.run_id} differs from {runs[0].manifest.run_id} in its {what}.",
                "Only runs of the same rig, machine, models and plan are repetitions of each other.",
            )


def _patches(run: RunData, names: Sequence[str]) -> dict[str, list[str]]:
    return {x.scenario: sorted(x.proof.patches_live) for x in run.launches if x.scenario in names}


def merge(runs: Sequence[RunData]) -> RunData:
    """Return one run with the launches of all, for the scenarios and levels that each of them measured.

    Raises:
        UserError: they differ in rig, machine, models, live patches or what a pass sends, or have nothing in common.
    """
    first = runs[0]
    if len(runs) == 1:
        return first
    _same(runs, "rig", [run.manifest.rig["name"] for run in runs])
    _same(runs, "machine or software", [run.manifest.fingerprint_hash for run in runs])
    _same(runs, "models", [run.manifest.pair for run in runs])
    for name in _PLAN_FIELDS:
        _same(runs, name.replace("_", " "), [getattr(run.manifest.plan, name) for run in runs])
    names = [s for s in first.scenarios() if all(s in run.scenarios() for run in runs)]
    levels = [
        c
        for c in first.manifest.plan.levels
        if all(run.measured(s, c) for run in runs for s in names)
    ]
    if not names or not levels:
        raise UserError("These runs have no scenario and level in common.", "Choose others.")
    requests = {c: first.manifest.plan.requests[c] for c in levels}
    _same(
        runs,
        "requests a level",
        [{c: run.manifest.plan.requests[c] for c in levels} for run in runs],
    )
    _same(runs, "live patches", [_patches(run, names) for run in runs])
    counts = [1 + max(r.launch for r in run.levels) for run in runs]
    offsets = [0, *accumulate(counts)]

    def kept(record: LevelRecord | RequestRecord) -> bool:
        return record.scenario in names and record.level in levels

    unfinished = next((run for run in runs if run.manifest.status != "complete"), first)
    plan = first.manifest.plan.model_copy(
        update={
            "scenarios": names,
            "levels": levels,
            "requests": requests,
            "launches": offsets[-1],
            "max_launches": offsets[-1],
            "sweeps": min(run.manifest.plan.sweeps for run in runs),
        }
    )
    manifest = first.manifest.model_copy(
        update={
            "run_id": "+".join(run.manifest.run_id for run in runs),
            "plan": plan,
            "scenarios": {n: v for n, v in first.manifest.scenarios.items() if n in names},
            "status": unfinished.manifest.status,
            "status_detail": unfinished.manifest.status_detail,
        }
    )

    pairs = list(zip(runs, offsets, strict=False))
    return RunData(
        manifest=manifest,
        launches=[
            x.model_copy(update={"launch": x.launch + by})
            for run, by in pairs
            for x in run.launches
            if x.scenario in names
        ],
        requests=[
            r.model_copy(update={"launch": r.launch + by})
            for run, by in pairs
            for r in run.requests
            if kept(r)
        ],
        levels=[
            r.model_copy(update={"launch": r.launch + by})
            for run, by in pairs
            for r in run.levels
            if kept(r)
        ],
        failures=[f for run in runs for f in run.failures if f.scenario in names],
    )
