"""What counts of a run that was taken up again. Pure.

A pass that was measured whole before a resumption counts; everything of a pass that was cut short, or in which a
request failed, is set aside, because the pass is measured again from its start. An output that differs from the
planted one is never set aside: it shows a bug, whatever came after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kit.records import (
    AnyRecord,
    FailureRecord,
    LevelRecord,
    PlanConfig,
    RequestRecord,
    ResumeRecord,
)

# Scenario, launch, sweep, level.
Pass = tuple[str, int, int, int]


def pass_of(record: LevelRecord | RequestRecord) -> Pass:
    """Return the pass that a record belongs to."""
    return record.scenario, record.launch, record.sweep, record.level


def finished(records: Iterable[AnyRecord]) -> frozenset[Pass]:
    """Return the measured passes that ended with every request answered."""
    return frozenset(
        pass_of(r)
        for r in records
        if isinstance(r, LevelRecord) and r.phase == "measure" and not r.failed
    )


def planned_passes(plan: PlanConfig) -> int:
    """Return how many passes the planned launches measure."""
    return len(plan.scenarios) * plan.launches * plan.sweeps * len(plan.levels)


@dataclass
class Settled:
    """The records that count, in the order they were written, and what was set aside."""

    records: list[AnyRecord] = field(default_factory=list)
    set_aside: list[RequestRecord] = field(default_factory=list)
    healed: list[FailureRecord] = field(default_factory=list)
    resumes: int = 0


def _resume(so_far: Settled) -> Settled:
    done = finished(so_far.records)
    kept: list[AnyRecord] = []
    aside = list(so_far.set_aside)
    healed = list(so_far.healed)
    for record in so_far.records:
        if isinstance(record, FailureRecord):
            healed.append(record)
        elif isinstance(record, LevelRecord | RequestRecord) and record.phase == "measure":
            if pass_of(record) in done:
                kept.append(record)
            elif isinstance(record, RequestRecord):
                (kept if record.mismatch_at is not None else aside).append(record)
        else:
            kept.append(record)
    return Settled(kept, aside, healed, so_far.resumes + 1)


def settle(records: Sequence[AnyRecord]) -> Settled:
    """Return what counts of ``records``, given in the order they were written."""
    settled = Settled()
    for record in records:
        if isinstance(record, ResumeRecord):
            settled = _resume(settled)
        else:
            settled.records.append(record)
    return settled
