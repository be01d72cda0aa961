"""Judge claims: ratios of two scenarios within one run. Hardware terms cancel, so they hold across machines."""

from __future__ import annotations

from kit import stats
from kit.golden import Claim, Golden
from kit.records import RunData
from kit.verdict.levels import Groups, noise_beside, replicate_groups, to_interval, tok_s_groups
from kit.verdict.model import ClaimStatus, ClaimVerdict, Interval


def _both(run: RunData, claim: Claim, levels: list[int]) -> tuple[Groups, Groups]:
    if len(levels) == 1:
        return (
            tok_s_groups(run, claim.numerator, levels[0]),
            tok_s_groups(run, claim.denominator, levels[0]),
        )
    return (
        replicate_groups(run, claim.numerator, levels),
        replicate_groups(run, claim.denominator, levels),
    )


def status_of(ratio: Interval, claim: Claim, tolerance: float) -> ClaimStatus:
    """Return how a ratio with its interval stands to a claim's bounds.

    holds: the whole interval keeps the bounds. holds within tolerance: it keeps them once each is widened by the
    tolerance. refuted: the whole interval lies beyond the widened bound. open: anything else, such as no interval.
    """
    if ratio.low is None or ratio.high is None:
        return "open"
    least = claim.at_least if claim.at_least is not None else 0.0
    most = claim.at_most if claim.at_most is not None else float("inf")
    if ratio.low >= least and ratio.high <= most:
        return "holds"
    wide_least, wide_most = least * (1 - tolerance), most * (1 + tolerance)
    if ratio.low >= wide_least and ratio.high <= wide_most:
        return "holds within tolerance"
    if ratio.high < wide_least or ratio.low > wide_most:
        return "refuted"
    return "open"


# The worst of several levels decides a claim that speaks about each of them.
_WORST: list[ClaimStatus] = ["not measured", "refuted", "open", "holds within tolerance", "holds"]


def claim_ratios(run: RunData, claim: Claim) -> list[tuple[int, stats.Estimate]]:
    """Return the ratio at each level that the claim speaks about and the run has, levels pooled where they repeat
    one experiment (the lowest then names the pool).
    """
    pooled = claim.replicates and run.manifest.plan.protocol == "published"
    asked = [c for c in claim.levels if c in run.manifest.plan.levels]
    sets = [asked] if pooled and asked else [[level] for level in asked]
    found: list[tuple[int, stats.Estimate]] = []
    for levels in sets:
        top, bottom = _both(run, claim, levels)
        if top and bottom:
            beside = noise_beside(run, levels[0], [claim.numerator, claim.denominator])
            found.append((levels[0], stats.ratio_ci(top, bottom, beside=beside)))
    return found


def judge_claim(run: RunData, claim: Claim, golden: Golden) -> ClaimVerdict:
    """Judge one claim. Its levels are pooled where they repeat one experiment, else the worst one decides."""
    tolerance = golden.tolerance.floor
    judged: list[tuple[int, Interval, ClaimStatus]] = []
    for level, estimate in claim_ratios(run, claim):
        ratio = to_interval(estimate)
        judged.append((level, ratio, status_of(ratio, claim, tolerance)))
    status: ClaimStatus = "not measured"
    worst: Interval | None = None
    if judged:
        _, worst, status = min(judged, key=lambda j: _WORST.index(j[2]))
    return ClaimVerdict(
        id=claim.id,
        text=claim.text,
        numerator=claim.numerator,
        denominator=claim.denominator,
        levels=claim.levels,
        ratio=worst,
        at_least=claim.at_least,
        at_most=claim.at_most,
        tolerance=tolerance,
        golden_ratio=claim.golden_ratio,
        status=status,
        per_level={level: ratio for level, ratio, _ in judged} if len(judged) > 1 else {},
    )
