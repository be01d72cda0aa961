"""Name the factor that moved: throughput = effective concurrency × accept length ÷ step time.

All three are measured at every pass; each is compared with golden's, or with another run's. Concurrency and step time
are the server's where the logs of both sides have a line for each step, else the client's: a client sees waiting in
a queue, or its own slowness, as slower steps, and only the server's log tells them apart. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from kit import stats
from kit.golden import Golden, Reference
from kit.records import LevelRecord, RunData
from kit.verdict.levels import (
    noise_beside,
    noise_beside_golden,
    noisy_reference,
    to_interval,
)
from kit.verdict.model import Cause, FactorChange, FactorName, Origin
from kit.verdict.product import factors_of, server_factors_of, worst_error

# A factor that changed by less than this is not named as a cause, even if its interval excludes 1.
LEAST_MOVE = 0.02
# A factor that explains less than this of the change is not named beside one that explains most of it.
LEAST_SHARE = 0.2
# Requests waiting in the server's queue, as a share of those running, that make a cap out of a thin load.
QUEUED_SHARE = 0.1

GETTERS: dict[FactorName, Callable[[stats.Factors], float]] = {
    "effective concurrency": lambda f: f.effective_concurrency,
    "accept length": lambda f: f.accept_length,
    "step time": lambda f: f.step_time_s,
}
SIGN: dict[FactorName, int] = {"effective concurrency": 1, "accept length": 1, "step time": -1}
MEANING: dict[Origin, str] = {
    "cap": "a cap: requests waited in the server's queue",
    "client": "the load client kept requests from the server",
    "load": "fewer or more requests were in flight: too few requests, prefill, transport or the client",
    "draft": "the draft's guesses are accepted at another rate: prompts, chat template, draft head or a patch",
    "steps": "each step takes another time: clocks, PCIe, kernels, or something else using the machine",
}
Read = Callable[[LevelRecord], stats.Factors | None]


@dataclass(frozen=True)
class _Known:
    """Golden's factors, how to read the same of a pass, and whose figures they are."""

    factors: stats.Factors
    read: Read
    witness: Literal["server", "client"]


def _groups(run: RunData, scenario: str, level: int, read: Read) -> list[list[stats.Factors]]:
    groups = [
        [f for r in launch if (f := read(r)) is not None] for launch in run.grouped(scenario, level)
    ]
    return [g for g in groups if g]


def _told_throughout(run: RunData, scenario: str, level: int) -> bool:
    """Return whether the server's log gives the factors of every pass that has the client's."""
    passes = [r for r in run.measured(scenario, level) if factors_of(r)]
    return bool(passes) and all(server_factors_of(r) for r in passes)


def _changes(ratios: Mapping[FactorName, stats.Estimate]) -> list[FactorChange]:
    """Return the factors with what each does to throughput; the logarithms of the three add up to its own."""
    logs = {name: SIGN[name] * math.log(r.value) for name, r in ratios.items()}
    total = math.fsum(logs.values())
    return [
        FactorChange(
            factor=name,
            ratio=to_interval(r),
            moved=not (r.low <= 1 <= r.high) and abs(r.value - 1) >= LEAST_MOVE,
            share=logs[name] / total if abs(total) > 1e-12 else None,
        )
        for name, r in ratios.items()
    ]


def _origin(factor: FactorName, records: Sequence[LevelRecord]) -> Origin:
    """Return where a change of ``factor`` comes from, as far as the passes tell."""
    if factor == "accept length":
        return "draft"
    if factor == "step time":
        return "steps"
    told = [r.server for r in records if r.server]
    if told and fmean(s.queue_mean for s in told) > QUEUED_SHARE * fmean(
        s.running_mean for s in told
    ):
        return "cap"
    bound = sum(bool(r.client.get("client_bound")) for r in records)
    return "client" if 2 * bound >= len(records) > 0 else "load"


def _text(
    changes: Sequence[FactorChange],
    main: FactorChange | None,
    other: str,
    records: Sequence[LevelRecord],
) -> str:
    if main is None:
        return "no single factor moved by more than its noise"
    named = [main] + [
        c
        for c in changes
        if c.moved and c is not main and c.share is not None and abs(c.share) >= LEAST_SHARE
    ]
    parts = []
    for c in named:
        share = "" if c.share is None else f", {c.share:.0%} of the change"
        meaning = MEANING[_origin(c.factor, records)]
        parts.append(f"{c.factor} is {c.ratio.text()} of {other}{share} ({meaning})")
    return "; ".join(parts)


def _cause(
    scenario: str,
    level: int,
    ratios: Mapping[FactorName, stats.Estimate],
    records: Sequence[LevelRecord],
    other: str,
    witness: Literal["server", "client"],
) -> Cause:
    changes = _changes(ratios)
    moved = [c for c in changes if c.moved]
    main = max(moved, key=lambda c: abs(math.log(c.ratio.value))) if moved else None
    good = [r for r in records if not r.failed]
    return Cause(
        scenario=scenario,
        level=level,
        text=f"{scenario} at C={level}: {_text(changes, main, other, good)}",
        main=main.factor if main else None,
        origin=_origin(main.factor, good) if main else None,
        witness=witness,
        factors=changes,
        product_error=worst_error(records),
    )


def _golden_factors(golden: Golden, run: RunData, scenario: str, level: int) -> _Known | None:
    """Return golden's factors, of the server's log where both have it."""
    known = golden.factors_at(scenario, level)
    accept = known.accept_length or 1.0
    if known.decoding and known.decode_step_s and _told_throughout(run, scenario, level):
        factors = stats.Factors(known.decoding, accept, known.decode_step_s)
        return _Known(factors, server_factors_of, "server")
    if known.effective_concurrency and known.step_time_s:
        factors = stats.Factors(known.effective_concurrency, accept, known.step_time_s)
        return _Known(factors, factors_of, "client")
    return None


def _of_reference(
    run: RunData, golden: Golden, reference: Reference, known: _Known, scenario: str, level: int
) -> dict[FactorName, stats.Estimate] | None:
    groups = _groups(run, scenario, level, known.read)
    if not groups:
        return None
    # Golden keeps the noise of throughput only; no factor of it is taken to be quieter.
    beside = [
        *noise_beside(run, level, [scenario]),
        *noise_beside_golden(golden, level, scenario),
    ]
    return {
        name: stats.ratio_to_reference(
            [[get(f) for f in launch] for launch in groups],
            noisy_reference(reference, get(known.factors)),
            beside=beside,
        )
        for name, get in GETTERS.items()
    }


def find_cause(run: RunData, golden: Golden, scenario: str, level: int) -> Cause | None:
    """Return which factors moved one level away from golden, None where golden has no factors for it."""
    reference = golden.reference(scenario, level)
    known = _golden_factors(golden, run, scenario, level)
    if known is None or reference is None:
        return None
    ratios = _of_reference(run, golden, reference, known, scenario, level)
    if ratios is None:
        return None
    records = run.measured(scenario, level)
    return _cause(scenario, level, ratios, records, "golden", known.witness)


def cause_between(a: RunData, b: RunData, scenario: str, level: int) -> Cause | None:
    """Return which factors moved one level from run ``a`` to run ``b``, None where either did not measure it."""
    told = all(_told_throughout(run, scenario, level) for run in (a, b))
    read: Read = server_factors_of if told else factors_of
    before, after = (_groups(run, scenario, level, read) for run in (a, b))
    if not before or not after:
        return None
    ratios: dict[FactorName, stats.Estimate] = {
        c.factor: c.ratio for c in stats.decompose(after, before)
    }
    # Where a change comes from is seen in the second run: the first is what it is measured against.
    records = b.measured(scenario, level)
    witness: Literal["server", "client"] = "server" if told else "client"
    return _cause(scenario, level, ratios, records, "the first run's", witness)
