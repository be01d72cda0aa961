"""From a run and a golden file to a verdict. Pure: no I/O, no clock, no randomness beyond fixed seeds.

Order: INVALID → NOT COMPARABLE → REPRODUCED / FASTER / SLOWER / INCONCLUSIVE.
"""

from __future__ import annotations

from collections.abc import Sequence

from kit.golden import Golden
from kit.records import RunData
from kit.verdict.cause import find_cause
from kit.verdict.claims import judge_claim
from kit.verdict.comparable import comparability
from kit.verdict.energy import level_energies, why_none
from kit.verdict.guards import all_findings
from kit.verdict.levels import judge_levels
from kit.verdict.model import (
    EXIT_CODES,
    Cause,
    ClaimVerdict,
    Finding,
    LevelVerdict,
    Status,
    Verdict,
    count,
)
from kit.verdict.precision import Wide, advice, too_wide
from kit.verdict.product import product_findings

__all__ = ["Verdict", "Wide", "judge", "too_wide"]

SEVERITY_ORDER = {"invalid": 0, "warning": 1, "note": 2}


def _from_levels(
    levels: Sequence[LevelVerdict], claims: Sequence[ClaimVerdict]
) -> tuple[Status, str]:
    """Judge by levels and claims; replicates of one experiment do not count twice."""
    judged = [v for v in levels if v.status != "NO REFERENCE" and not v.replicate]
    refuted = [c for c in claims if c.status == "refuted"]
    open_claims = [c for c in claims if c.status == "open"]
    slower = [v for v in judged if v.status == "SLOWER"]
    faster = [v for v in judged if v.status == "FASTER"]
    unsure = [v for v in judged if v.status == "INCONCLUSIVE"]

    def where(found: Sequence[LevelVerdict]) -> str:
        return ", ".join(
            f"{v.scenario} at C={v.level} ({v.ratio.text()} of golden)"
            for v in found[:4]
            if v.ratio
        )

    if not judged and not claims:
        return "INCONCLUSIVE", "nothing that was measured has a reference"
    if slower:
        return "SLOWER", where(slower)
    if faster:
        return "FASTER", where(faster)
    if refuted:
        return _claim_side(refuted), "; ".join(_claim_text(c) for c in refuted)
    if unsure or open_claims:
        parts = [where(unsure)] if unsure else []
        parts += [_claim_text(c) for c in open_claims]
        return "INCONCLUSIVE", "too noisy to tell: " + "; ".join(parts)
    held = [c for c in claims if c.status != "not measured"]
    return (
        "REPRODUCED",
        f"{count(len(judged), 'level')} within tolerance of golden, {count(len(held), 'claim')} of "
        f"{len(claims)} hold" + _not_measured(claims),
    )


def _claim_text(claim: ClaimVerdict) -> str:
    ratio = claim.ratio.text() if claim.ratio else "not measured"
    return f"{claim.text}: {ratio}"


def _not_measured(claims: Sequence[ClaimVerdict]) -> str:
    missing = sum(c.status == "not measured" for c in claims)
    return f" ({count(missing, 'claim')} not measured)" if missing else ""


def _claim_side(refuted: Sequence[ClaimVerdict]) -> Status:
    """A ratio below its bound is SLOWER; one above an upper bound is FASTER."""
    low = [c for c in refuted if c.ratio and c.at_least is not None and c.ratio.value < c.at_least]
    return "SLOWER" if low else "FASTER"


def _from_claims(claims: Sequence[ClaimVerdict]) -> tuple[Status, str]:
    judged = [c for c in claims if c.status != "not measured"]
    refuted = [c for c in judged if c.status == "refuted"]
    still_open = [c for c in judged if c.status == "open"]
    if not judged:
        return (
            "INCONCLUSIVE",
            "none of the claims was measured; nothing was found that voids the numbers",
        )
    if refuted:
        return _claim_side(refuted), "; ".join(_claim_text(c) for c in refuted)
    if still_open:
        return "INCONCLUSIVE", "too noisy to tell: " + "; ".join(_claim_text(c) for c in still_open)
    return (
        "REPRODUCED",
        f"{len(judged)} of {count(len(claims), 'claim')} hold; nothing was found that voids the numbers"
        + _not_measured(claims),
    )


def _shape(claims: Sequence[ClaimVerdict]) -> str:
    """Say what of the claims holds where absolute throughput is not compared."""
    judged = [c for c in claims if c.status != "not measured"]
    if not judged:
        return "no claim was measured, so no ratio of scenarios is judged either"
    status, text = _from_claims(claims)
    return f"ratios of scenarios are judged all the same: {status}, {text}"


# Findings that can be the reason for longer or shorter steps.
EXPLAINS_STEPS = {"gpu-throttled", "gpu-power-capped", "gpu-shared", "cpu-shared", "cpu-steal"}


def _explained(cause: Cause, findings: Sequence[Finding]) -> Cause:
    """Return a cause with what telemetry saw at its level, where that can be the reason."""
    if cause.origin != "steps":
        return cause
    seen = [
        f.seen.rstrip(".")
        for f in findings
        if f.id in EXPLAINS_STEPS and (f.scenario, f.level) == (cause.scenario, cause.level)
    ]
    if not seen:
        return cause
    return cause.model_copy(update={"text": f"{cause.text}; seen meanwhile: {'; '.join(seen)}"})


def judge(run: RunData, golden: Golden | None) -> Verdict:
    """Return the verdict of a run.

    Args:
        run: What was measured.
        golden: The rig's golden file, None if there is none.
    """
    findings: list[Finding] = [*all_findings(run, golden), *product_findings(run)]
    levels = judge_levels(run, golden)
    claims = [judge_claim(run, claim, golden) for claim in golden.claims] if golden else []
    comparable = comparability(run, golden)
    invalid = [f for f in findings if f.severity == "invalid"]
    decided_by = golden.decides if golden else "claims"
    status: Status
    if invalid:
        status = "INVALID"
        headline = invalid[0].seen
        if len(invalid) > 1:
            headline += f" (and {len(invalid) - 1} more)"
    elif golden is None:
        status = "NOT COMPARABLE"
        headline = (
            f"there is no golden file for the rig {run.manifest.rig['name']}; "
            "nothing was found that voids the numbers"
        )
    elif decided_by == "claims":
        status, headline = _from_claims(claims)
    elif not comparable.same:
        status = "NOT COMPARABLE"
        headline = f"{comparable.text.rstrip('.')}; {_shape(claims)}"
    else:
        status, headline = _from_levels(levels, claims)
    if status == "INCONCLUSIVE" and golden:
        findings += advice(run, golden)
    causes = []
    if golden and comparable.same:
        # Also of an INVALID run: why it is slower often is why it is invalid.
        moved = [v for v in levels if v.status in ("SLOWER", "FASTER")]
        causes = [
            _explained(c, findings)
            for v in moved
            if (c := find_cause(run, golden, v.scenario, v.level))
        ]
    energy = level_energies(run)
    return Verdict(
        status=status,
        exit_code=EXIT_CODES[status],
        headline=headline,
        run_id=run.manifest.run_id,
        rig=str(run.manifest.rig["name"]),
        golden_source=golden.source if golden else None,
        decided_by=decided_by,
        comparable=comparable.text,
        caveat=run.manifest.caveat,
        findings=sorted(findings, key=lambda f: SEVERITY_ORDER[f.severity]),
        levels=levels,
        claims=claims,
        causes=causes,
        energy=energy,
        energy_unavailable="" if energy else why_none(run),
    )
