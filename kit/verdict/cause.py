"""Name the factor that moved: throughput = effective concurrency × accept length ÷ step time.

All three are measured at every pass; each is compared with golden. The product of the three must give the
throughput back within :data:`PRODUCT_SLACK`, otherwise the finding says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from kit import stats
from kit.golden import Golden
from kit.records import LevelRecord, RunData
from kit.verdict.levels import to_interval
from kit.verdict.model import Cause, FactorChange, FactorName, Finding, LevelVerdict

PRODUCT_SLACK = 0.01
# A factor that changed by less than this is not named as a cause, even if its interval excludes 1.
LEAST_MOVE = 0.02

Getter = Callable[[LevelRecord], float | None]
FACTORS: list[tuple[FactorName, Getter, int]] = [
    ("effective concurrency", lambda r: r.effective_concurrency, 1),
    # Without speculation a step makes one token.
    ("accept length", lambda r: r.accept_length or 1.0, 1),
    ("step time", lambda r: r.step_time_s, -1),
]
MEANING = {
    "effective concurrency": "fewer or more requests were in flight: caps, too few requests, or the client",
    "accept length": "the draft's guesses are accepted at another rate: prompts, chat template, draft head or a patch",
    "step time": "each step takes another time: clocks, PCIe, kernels, or something else using the machine",
}


def product_error(record: LevelRecord) -> float:
    """Return by how much, relatively, the product of the three factors misses the measured throughput."""
    if not record.step_time_s or not record.tok_s:
        return 0.0
    product = record.effective_concurrency * (record.accept_length or 1.0) / record.step_time_s
    return product / record.tok_s - 1


def product_findings(run: RunData) -> Iterator[Finding]:
    """Yield a warning for each level whose factors do not multiply to its throughput."""
    for scenario in run.scenarios():
        for level in run.manifest.plan.levels:
            records = [r for r in run.measured(scenario, level) if not r.failed]
            worst = max((product_error(r) for r in records), key=abs, default=0.0)
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


def _groups(run: RunData, scenario: str, level: int, get: Getter) -> list[list[float]]:
    groups = []
    for g in run.grouped(scenario, level):
        values = [get(r) for r in g if not r.failed]
        kept = [v for v in values if v]
        if kept:
            groups.append(kept)
    return groups


def find_cause(run: RunData, golden: Golden, verdict: LevelVerdict) -> Cause | None:
    """Return which factors moved one level away from golden, None where golden has no factors for it."""
    reference = golden.factors_at(verdict.scenario, verdict.level)
    known = {
        "effective concurrency": reference.effective_concurrency,
        "accept length": reference.accept_length or (1.0 if reference.step_time_s else None),
        "step time": reference.step_time_s,
    }
    changes: list[FactorChange] = []
    weights: dict[str, float] = {}
    for name, get, sign in FACTORS:
        base = known[name]
        groups = _groups(run, verdict.scenario, verdict.level, get)
        if base is None or not groups:
            return None
        estimate = stats.ratio_to_reference(groups, base, 0.0)
        excludes_one = not (estimate.low <= 1 <= estimate.high)
        weights[name] = sign * math.log(estimate.value)
        changes.append(
            FactorChange(
                factor=name,
                ratio=to_interval(estimate),
                moved=excludes_one and abs(estimate.value - 1) >= LEAST_MOVE,
            )
        )
    moved = sorted((c for c in changes if c.moved), key=lambda c: -abs(weights[c.factor]))
    where = f"{verdict.scenario} at C={verdict.level}"
    if moved:
        parts = [f"{c.factor} is {c.ratio.text()} of golden ({MEANING[c.factor]})" for c in moved]
        text = f"{where}: " + "; ".join(parts)
    else:
        text = f"{where}: no single factor moved by more than its noise"
    records = [r for r in run.measured(verdict.scenario, verdict.level) if not r.failed]
    worst = max((product_error(r) for r in records), key=abs, default=0.0)
    return Cause(
        scenario=verdict.scenario,
        level=verdict.level,
        text=text,
        factors=changes,
        product_error=worst,
    )
