"""Whether a run's absolute numbers may be compared with golden's: by fingerprint, or by the rig's description."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pydantic import ValidationError

from kit.fingerprint import TIER_TEXT, Fingerprint, Tier, compare
from kit.golden import Golden
from kit.records import RunData


@dataclass(frozen=True)
class Comparability:
    """Whether levels are judged, and the sentence that says why."""

    same: bool
    text: str


def _fits_rig(run: RunData, mine: Fingerprint | None) -> bool:
    """Return whether the run's machine is what its rig describes, for golden files without a fingerprint."""
    match = run.manifest.rig.get("match", {})
    wanted = match.get("gpu")
    names = [g.name for g in mine.gpus] if mine else []
    if wanted is None:
        return not names
    return sum(bool(re.search(wanted, n)) for n in names) >= int(match.get("min_count", 1))


def _parse(data: dict[str, object]) -> Fingerprint | None:
    try:
        return Fingerprint.model_validate(data) if data else None
    except ValidationError:
        return None


def comparability(run: RunData, golden: Golden | None) -> Comparability:
    """Return whether absolute throughput is judged, with the reason."""
    if golden is None:
        return Comparability(False, "No golden file: nothing to compare absolute throughput with.")
    if golden.decides == "claims":
        return Comparability(
            False,
            "Absolute throughput of this rig depends on the processor and is only reported; "
            "the claims, exactness and acceptance decide.",
        )
    if golden.protocol != run.manifest.plan.protocol:
        return Comparability(
            False,
            f"Golden was measured by the {golden.protocol} protocol, this run by "
            f"{run.manifest.plan.protocol}: absolute throughput is not compared.",
        )
    if golden.output_tokens is not None and golden.output_tokens != run.manifest.plan.output_tokens:
        return Comparability(
            False,
            f"Golden has {golden.output_tokens} output tokens a request, this run "
            f"{run.manifest.plan.output_tokens}: absolute throughput is not compared.",
        )
    mine, theirs = _parse(run.manifest.fingerprint), _parse(golden.fingerprint)
    if theirs is None:
        fits = _fits_rig(run, mine)
        what = "is what the rig describes" if fits else "is not what the rig describes"
        return Comparability(fits, f"Golden has no fingerprint; this machine {what}.")
    if mine is None:
        return Comparability(False, "The run has no readable fingerprint.")
    tier = compare(mine, theirs)
    same = tier >= Tier.SAME_SKU_AND_TOPOLOGY
    return Comparability(same, f"Against golden's machine this is {TIER_TEXT[tier]}.")
