"""Make a golden file from a run, and compare two golden files."""

from __future__ import annotations

from statistics import fmean
from typing import Literal, cast

from kit import stats
from kit.errors import UserError
from kit.golden import Claim, Factors, Golden, Provenance, Reference, Tolerance
from kit.records import LevelRecord, RunData
from kit.verdict.claims import claim_ratios
from kit.verdict.guards import all_findings
from kit.verdict.levels import tok_s_groups

LEAST_LAUNCHES = 2


def _mean(values: list[float | None], digits: int) -> float | None:
    known = [v for v in values if v]
    return round(fmean(known), digits) if known else None


def _reference(groups: list[list[float]]) -> Reference:
    launch_cv, sweep_cv = stats.variance_components(groups)
    return Reference(
        value=round(stats.hierarchical_ci(groups).value, 2),
        n=sum(map(len, groups)),
        launches=len(groups),
        launch_cv=round(launch_cv, 4),
        sweep_cv=round(sweep_cv, 4),
    )


def _factors(records: list[LevelRecord]) -> Factors:
    told = [r.server for r in records if r.server and r.server.concurrency]
    return Factors(
        effective_concurrency=_mean([r.effective_concurrency for r in records], 3),
        accept_length=_mean([r.accept_length for r in records], 4),
        step_time_s=_mean([r.step_time_s for r in records], 7),
        decoding=_mean([s.concurrency for s in told], 3) if told else None,
        decode_step_s=_mean([s.mean_step_s for s in told], 7) if told else None,
    )


def _carried(run: RunData, claim: Claim) -> Claim:
    """Return a claim with this run's ratio; without one where the run has none."""
    ratios = claim_ratios(run, claim)
    # Of several levels the one nearest to the bound is told, as in a verdict.
    worst = {
        True: min((r.value for _, r in ratios), default=None),
        False: max((r.value for _, r in ratios), default=None),
    }[claim.at_least is not None]
    return claim.model_copy(update={"golden_ratio": None if worst is None else round(worst, 4)})


def record(
    run: RunData, note: str, *, decides: str = "levels", claims: list[Claim] | None = None
) -> Golden:
    """Make the golden file of a run.

    Args:
        run: A complete, valid run of at least two launches.
        note: Provenance in words.
        decides: ``levels`` or ``claims`` (see :class:`kit.golden.Golden`).
        claims: Claims to carry over, such as those of the golden file that is replaced; their golden ratio becomes
            this run's.

    Raises:
        UserError: the run is INVALID or incomplete, or has fewer than two launches.
    """
    invalid = [f for f in all_findings(run, None) if f.severity == "invalid"]
    if invalid:
        raise UserError(
            f"The run {run.manifest.run_id} is INVALID and cannot become golden: {invalid[0].seen}",
            invalid[0].remedy,
        )
    if run.manifest.status != "complete":
        raise UserError(
            f"The run {run.manifest.run_id} is {run.manifest.status}.", "Record a complete run."
        )
    throughput: dict[str, dict[int, Reference]] = {}
    factors: dict[str, dict[int, Factors]] = {}
    for scenario in run.scenarios():
        for level in run.manifest.plan.levels:
            groups = tok_s_groups(run, scenario, level)
            if len(groups) < LEAST_LAUNCHES:
                raise UserError(
                    f"{scenario} at C={level} was measured in {len(groups)} launch; golden numbers need at "
                    f"least {LEAST_LAUNCHES}, or the noise between launches stays unknown.",
                    "Run with --launches 2 or more.",
                )
            throughput.setdefault(scenario, {})[level] = _reference(groups)
            factors.setdefault(scenario, {})[level] = _factors(run.measured(scenario, level))
    manifest = run.manifest
    kept = [_carried(run, claim) for claim in claims or []]
    return Golden(
        rig=str(manifest.rig["name"]),
        source="measured",
        provenance=Provenance(
            text=note,
            date=manifest.created[:10],
            kit_version=manifest.kit_version,
            git_commit=manifest.git_commit,
            image_digest=manifest.image_digest,
            patches=sorted({p for launch in run.launches for p in launch.proof.patches_live}),
            run_id=manifest.run_id,
        ),
        protocol=manifest.plan.protocol,
        decides=cast("Literal['levels', 'claims']", decides),
        fingerprint=manifest.fingerprint,
        output_tokens=manifest.plan.output_tokens,
        requests=manifest.plan.requests,
        throughput=throughput,
        factors=factors,
        claims=kept,
        tolerance=Tolerance(),
    )


def differences(a: Golden, b: Golden) -> list[str]:
    """Return what differs between two golden files, a line each; one line says so if nothing does."""
    lines: list[str] = []
    for field in ("rig", "source", "protocol", "decides", "output_tokens", "tolerance"):
        old, new = getattr(a, field), getattr(b, field)
        if old != new:
            lines.append(f"{field}: {old} → {new}")
    for scenario in sorted(a.throughput.keys() | b.throughput.keys()):
        left, right = a.throughput.get(scenario, {}), b.throughput.get(scenario, {})
        for level in sorted(left.keys() | right.keys()):
            old, new = left.get(level), right.get(level)
            where = f"{scenario} C={level}"
            if old and new:
                if old.value != new.value:
                    change = new.value / old.value - 1
                    lines.append(f"{where}: {old.value:g} → {new.value:g} tok/s ({change:+.1%})")
            else:
                lines.append(f"{where}: only in the {'first' if old else 'second'}")
    old_claims = {c.id: c for c in a.claims}
    new_claims = {c.id: c for c in b.claims}
    for name in sorted(old_claims.keys() | new_claims.keys()):
        before, after = old_claims.get(name), new_claims.get(name)
        if before is None or after is None:
            lines.append(f"claim {name}: only in the {'first' if before else 'second'}")
            continue
        lines += [
            f"claim {name}: {field.replace('_', ' ')} {getattr(before, field)} → {getattr(after, field)}"
            for field in Claim.model_fields
            if getattr(before, field) != getattr(after, field)
        ]
    return lines or ["no difference"]
