"""Do the three factors multiply to the throughput, and do client and server agree on each of them? Pure.

The client derives its three factors from the same sums, so their product is its throughput by construction. The
server's log (:mod:`kit.serverlog`) is another witness: requests that it decoded at once, its own steps and their
length. Its concurrency and step time with the accept length of the requests' own counts must give the throughput
that the client measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kit import stats
from kit.records import LevelRecord, RunData
from kit.verdict.model import Finding, count

PRODUCT_SLACK = stats.PRODUCT_SLACK
LEAST_PASSES = 3


def factors_of(record: LevelRecord) -> stats.Factors | None:
    """Return the client's three factors of one pass, None where one was not measured."""
    if record.failed or not record.step_time_s or record.effective_concurrency <= 0:
        return None
    # Without speculation a step makes one token.
    return stats.Factors(
        record.effective_concurrency, record.accept_length or 1.0, record.step_time_s
    )


def server_factors_of(record: LevelRecord) -> stats.Factors | None:
    """Return the factors with the server's concurrency and step time, None where its log does not tell."""
    told = record.server
    if record.failed or not told or not told.concurrency or not told.mean_step_s:
        return None
    return stats.Factors(told.concurrency, record.accept_length or 1.0, told.mean_step_s)


def own_steps(record: LevelRecord) -> float:
    """Return the decode steps that the requests' own counts add up to; the first token comes from prefill."""
    if record.accept_length:
        return record.output_tokens / record.accept_length
    return record.output_tokens - (record.requests - record.failed)


def product_error(record: LevelRecord) -> float:
    """Return by how much, relatively, the three factors of one pass miss the measured throughput.

    The server's where its log tells them, else the client's (then it can only be a damaged record). Without
    speculation the prefill's token of each request is accounted for.
    """
    if record.failed or record.tok_s <= 0:
        return 0.0
    factors = server_factors_of(record)
    if factors is not None:
        per_step = record.output_tokens / max(own_steps(record), 1.0)
        factors = stats.Factors(factors.effective_concurrency, per_step, factors.step_time_s)
    else:
        factors = factors_of(record)
    return stats.product_error(factors, record.tok_s) if factors else 0.0


def worst_error(records: Sequence[LevelRecord]) -> float:
    """Return the largest product error of some passes, with its sign."""
    return max((product_error(r) for r in records if not r.failed), key=abs, default=0.0)


def product_findings(run: RunData) -> Iterator[Finding]:
    """Yield what does not fit: a warning for each level, one note for what overlap explains, one for the time."""
    overlap: list[tuple[float, str]] = []
    for scenario in run.scenarios():
        for level in run.manifest.plan.levels:
            records = [r for r in run.measured(scenario, level) if not r.failed]
            worst = max(records, key=lambda r: abs(product_error(r)), default=None)
            if worst is None or abs(product_error(worst)) <= PRODUCT_SLACK:
                continue
            if _one_more_step(worst):
                told = worst.server
                assert told is not None
                overlap.append(
                    (
                        product_error(worst),
                        f"{scenario} at C={level}: {told.request_steps} steps in its log, {own_steps(worst):.0f} by "
                        f"the requests' own counts, {worst.requests} requests",
                    )
                )
                continue
            yield _does_not_multiply(scenario, level, worst)
    if overlap:
        yield _overlap(overlap)
    yield from _outside_steps(run)


def _one_more_step(record: LevelRecord) -> bool:
    """Return whether the server's surplus of steps is at most one for each request."""
    told = record.server
    if told is None or told.request_steps is None:
        return False
    return 0 < told.request_steps - own_steps(record) <= record.requests + 0.5


def _overlap(found: Sequence[tuple[float, str]]) -> Finding:
    worst, where = max(found)
    return Finding(
        id="steps-beyond-the-end",
        severity="note",
        seen=f"At {count(len(found), 'level')} the product of the three factors is above the measured throughput, "
        f"by up to {worst:.1%}; steps disagree ({where}).",
        why="The overlap scheduler launches the next step before it knows that a request has ended, so up to one step "
        "of each request is decoded for nothing. Concurrency and step time are not the reason.",
        remedy="Nothing to mend: it shrinks with longer outputs, and both sides of a comparison have it.",
    )


def _does_not_multiply(scenario: str, level: int, record: LevelRecord) -> Finding:
    told = record.server
    error = product_error(record)
    if told is not None and told.request_steps is not None:
        detail = (
            f"steps disagree: {told.request_steps} in the server's log, {own_steps(record):.0f} by the requests' own "
            "counts"
        )
        if told.decoded_tokens is not None:
            made = told.decoded_tokens / max(told.request_steps, 1)
            detail += f"; tokens a step by its log {made:.2f}"
            if record.accept_length:
                detail += f", accept length by the requests' counts {record.accept_length:.2f}"
    else:
        detail = "the client's own figures disagree"
    return Finding(
        id="factors-do-not-multiply",
        severity="warning",
        scenario=scenario,
        level=level,
        seen=f"{scenario} at C={level}: concurrency × accept length ÷ step time differs from the measured "
        f"throughput by {error:+.1%}; {detail}.",
        why="The decomposition that names causes is off by that much here.",
        remedy="Judge the cause at this level with care; look whether something else used the server meanwhile.",
    )


@dataclass(frozen=True)
class _Gap:
    """How client and server differ at one level: client over server, 1 is equal."""

    where: str
    step_time: stats.Estimate
    concurrency: float | None


def _outside_steps(run: RunData) -> Iterator[Finding]:
    """Yield one note where requests spent time outside the server's decode steps."""
    gaps = [
        gap
        for scenario in run.scenarios()
        for level in run.manifest.plan.levels
        if (gap := _gap(run.measured(scenario, level), f"{scenario} at C={level}"))
    ]
    gaps = [
        g
        for g in gaps
        if g.step_time.low > 1 + PRODUCT_SLACK or g.step_time.high < 1 - PRODUCT_SLACK
    ]
    if not gaps:
        return
    worst = max(gaps, key=lambda g: abs(g.step_time.value - 1))
    seen = (
        f"At {count(len(gaps), 'level')} the client's step time is not the one in the server's log; the most at "
        f"{worst.where}: {worst.step_time.value - 1:+.1%}"
    )
    if worst.concurrency is not None:
        seen += (
            f", and its requests in flight are {worst.concurrency - 1:+.1%} of those being decoded"
        )
    yield Finding(
        id="step-times-differ",
        severity="note",
        seen=seen + ".",
        why="The client's figures cover everything that a request waits for: prefill, queueing, transport and the "
        "client itself. Causes are named from the server's where its log has a line for each step.",
        remedy="If it grew against an earlier run, look at prefill and at the client before the kernels.",
    )


def _gap(records: Sequence[LevelRecord], where: str) -> _Gap | None:
    good = [r for r in records if not r.failed and r.step_time_s and r.server]

    def ratios(
        mine: Callable[[LevelRecord], float | None], theirs: Callable[[LevelRecord], float | None]
    ) -> list[float]:
        pairs = [(mine(r), theirs(r)) for r in good]
        return [a / b for a, b in pairs if a and b]

    def step_s(r: LevelRecord) -> float | None:
        return (r.server.mean_step_s or r.server.step_time_s) if r.server else None

    def decoding(r: LevelRecord) -> float | None:
        return r.server.concurrency if r.server else None

    steps = ratios(lambda r: r.step_time_s, step_s)
    if len(steps) < LEAST_PASSES:
        return None
    flying = ratios(lambda r: r.effective_concurrency, decoding)
    return _Gap(where, stats.mean_ci(steps), sum(flying) / len(flying) if flying else None)
