"""Name the factor that moved: throughput = effective concurrency × accept length ÷ step time.

All three are measured at every pass; each is compared with golden's, or with another run's. The client derives
the three from the same sums, so their product must give its throughput back; the server's log gives a step
time of its own, and where the two differ the findings say so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from kit import stats
from kit.golden import Golden
from kit.records import LevelRecord, RunData
from kit.verdict.levels import (
    noise_beside,
    noise_beside_golden,
    noisy_reference,
    to_interval,
)
from kit.verdict.model import Cause, FactorChange, FactorName, Finding

PRODUCT_SLACK = stats.PRODUCT_SLACK
# A factor that changed by less than this is not named as a cause, even if its interval excludes 1.
LEAST_MOVE = 0.02
# A factor that explains less than this of the change is not named beside one that explains most of it.
LEAST_SHARE = 0.2
LEAST_PASSES = 3

GETTERS: dict[FactorName, Callable[[stats.Factors], float]] = {
    "effective concurrency": lambda f: f.effective_concurrency,
    "accept length": lambda f: f.accept_length,
    "step time": lambda f: f.step_time_s,
}
SIGN: dict[FactorName, int] = {"effective concurrency": 1, "accept length": 1, "step time": -1}
MEANING: dict[FactorName, str] = {
    "effective concurrency": "fewer or more requests were in flight: caps, too few requests, or the client",
    "accept length": "the draft's guesses are accepted at another rate: prompts, chat template, draft head or a patch",
    "step time": "each step takes another time: clocks, PCIe, kernels, or something else using the machine",
}


def factors_of(record: LevelRecord) -> stats.Factors | None:
    """Return the three factors of one pass, None where one was not measured."""
    if record.failed or not record.step_time_s or record.effective_concurrency <= 0:
        return None
    # Without speculation a step makes one token.
    return stats.Factors(
        record.effective_concurrency, record.accept_length or 1.0, record.step_time_s
    )


def product_error(record: LevelRecord) -> float:
    """Return by how much, relatively, the product of the three factors misses the measured throughput."""
    factors = factors_of(record)
    if factors is None or record.tok_s <= 0:
        return 0.0
    return stats.product_error(factors, record.tok_s)


def _worst(records: Sequence[LevelRecord]) -> float:
    return max((product_error(r) for r in records if not r.failed), key=abs, default=0.0)


def product_findings(run: RunData) -> Iterator[Finding]:
    """Yield a warning for each level whose factors do not multiply to its throughput."""
    for scenario in run.scenarios():
        for level in run.manifest.plan.levels:
            worst = _worst(run.measured(scenario, level))
            if abs(worst) > PRODUCT_SLACK:
                yield Finding(
                    id="factors-do-not-multiply",
                    severity="warning",
                    scenario=scenario,
                    level=level,
                    seen=f"{scenario} at C={level}: concurrency × accept length ÷ step time differs from the measured "
                    f"throughput by {worst:+.1%}.",
                    why="The decomposition that names causes is off by that much here.",
                    remedy="Judge the cause at this level with care.",
                )
    yield from _server_step_times(run)


def _server_step_times(run: RunData) -> Iterator[Finding]:
    """Yield one note if the server's own step time gives another throughput than was measured."""
    off: list[tuple[float, str]] = []
    for scenario in run.scenarios():
        for level in run.manifest.plan.levels:
            ratios = [
                r.step_time_s / r.server.step_time_s
                for r in run.measured(scenario, level)
                if not r.failed and r.step_time_s and r.server and r.server.step_time_s
            ]
            if len(ratios) < LEAST_PASSES:
                continue
            estimate = stats.mean_ci(ratios)
            if estimate.low > 1 + PRODUCT_SLACK or estimate.high < 1 - PRODUCT_SLACK:
                off.append((estimate.value - 1, f"{scenario} at C={level}"))
    if off:
        worst, where = max(off, key=lambda pair: abs(pair[0]))
        yield Finding(
            id="step-times-differ",
            severity="note",
            seen=f"At {len(off)} levels the client's step time is not the one in the server's log; "
            f"the most at {where}: {worst:+.1%}.",
            why="The client's covers everything that a request waits for: prefill, queueing, transport and the client "
            "itself. With the server's step time the three factors miss throughput by that much.",
            remedy="If it grew against an earlier run, look at prefill and at the client before the kernels.",
        )


def _groups(run: RunData, scenario: str, level: int) -> list[list[stats.Factors]]:
    groups = [
        [f for r in launch if (f := factors_of(r)) is not None]
        for launch in run.grouped(scenario, level)
    ]
    return [g for g in groups if g]


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


def _text(changes: Sequence[FactorChange], main: FactorChange | None, other: str) -> str:
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
        parts.append(f"{c.factor} is {c.ratio.text()} of {other}{share} ({MEANING[c.factor]})")
    return "; ".join(parts)


def _cause(
    scenario: str,
    level: int,
    ratios: Mapping[FactorName, stats.Estimate],
    records: Sequence[LevelRecord],
    other: str,
) -> Cause:
    changes = _changes(ratios)
    moved = [c for c in changes if c.moved]
    main = max(moved, key=lambda c: abs(math.log(c.ratio.value))) if moved else None
    return Cause(
        scenario=scenario,
        level=level,
        text=f"{scenario} at C={level}: {_text(changes, main, other)}",
        main=main.factor if main else None,
        factors=changes,
        product_error=_worst(records),
    )


def find_cause(run: RunData, golden: Golden, scenario: str, level: int) -> Cause | None:
    """Return which factors moved one level away from golden, None where golden has no factors for it."""
    known = golden.factors_at(scenario, level)
    reference = golden.reference(scenario, level)
    groups = _groups(run, scenario, level)
    if not groups or not reference or not known.effective_concurrency or not known.step_time_s:
        return None
    base: dict[FactorName, float] = {
        "effective concurrency": known.effective_concurrency,
        "accept length": known.accept_length or 1.0,
        "step time": known.step_time_s,
    }
    # Golden keeps the noise of throughput only; no factor of it is taken to be quieter.
    beside = [
        *noise_beside(run, level, [scenario]),
        *noise_beside_golden(golden, level, scenario),
    ]
    ratios: dict[FactorName, stats.Estimate] = {
        name: stats.ratio_to_reference(
            [[get(f) for f in launch] for launch in groups],
            noisy_reference(reference, base[name]),
            beside=beside,
        )
        for name, get in GETTERS.items()
    }
    return _cause(scenario, level, ratios, run.measured(scenario, level), "golden")


def cause_between(a: RunData, b: RunData, scenario: str, level: int) -> Cause | None:
    """Return which factors moved one level from run ``a`` to run ``b``, None where either did not measure it."""
    before, after = _groups(a, scenario, level), _groups(b, scenario, level)
    if not before or not after:
        return None
    records = [*a.measured(scenario, level), *b.measured(scenario, level)]
    ratios: dict[FactorName, stats.Estimate] = {
        c.factor: c.ratio for c in stats.decompose(after, before)
    }
    return _cause(scenario, level, ratios, records, "the first run's")
