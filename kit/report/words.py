"""Sentences that the HTML report, report.md and the terminal share."""

from __future__ import annotations

from kit.records import Manifest, RunData
from kit.verdict.model import Cause, Status, Verdict

MEANING: dict[Status, str] = {
    "REPRODUCED": "This machine shows what the reference says.",
    "FASTER": "This machine is faster than the reference by more than chance and the tolerance explain.",
    "SLOWER": "This machine is slower than the reference by more than chance and the tolerance explain.",
    "INCONCLUSIVE": "The measurements are too noisy, or too few, to tell.",
    "NOT COMPARABLE": "The reference is of another machine, or there is none: absolute figures are not judged, "
    "ratios between scenarios are.",
    "INVALID": "The numbers mean nothing until what was found below is mended.",
}


def cause_sentences(verdict: Verdict) -> list[str]:
    """Return the cause in words, one sentence a level; one sentence that says why there is none otherwise."""
    if verdict.causes:
        return [_cause(cause) for cause in verdict.causes]
    if verdict.status == "INVALID":
        return ["No cause is looked for in numbers that mean nothing; see the findings."]
    if verdict.status == "NOT COMPARABLE":
        return [
            "Levels are not judged against another machine's figures, so no change is explained."
        ]
    if verdict.decided_by == "claims":
        return ["Levels decide nothing here, so no change of theirs is explained."]
    if verdict.status in ("SLOWER", "FASTER"):
        return ["The verdict comes from a claim, a ratio within this run; see the claims."]
    return ["No level differs from golden by more than chance: there is nothing to explain."]


def _cause(cause: Cause) -> str:
    where = f"{cause.scenario} at C={cause.level}"
    return cause.text if where in cause.text else f"{where}: {cause.text}"


def seconds_of(run: RunData) -> float | None:
    """Return the time from the first record to the last, seconds; None with fewer than two."""
    times = [r.t for r in run.launches]
    times += [r.t for r in run.levels]
    return max(times) - min(times) if len(times) > 1 else None


def patches_live(run: RunData) -> dict[str, list[str]]:
    """Return the patches that each scenario's servers reported as live."""
    found: dict[str, set[str]] = {}
    for launch in run.launches:
        found.setdefault(launch.scenario, set()).update(launch.proof.patches_live)
    return {name: sorted(live) for name, live in found.items()}


def pair_text(manifest: Manifest) -> str:
    """Return the model pair in words."""
    pair = manifest.pair
    if pair.get("kind") == "planted":
        return (
            f"planted: {pair.get('layers')} layers, hidden {pair.get('hidden')}, vocabulary {pair.get('vocab')}, "
            f"hit rate p = {pair.get('p')}, second choice q = {pair.get('q')}, seed {pair.get('seed')}"
        )
    return ", ".join(f"{key}: {value}" for key, value in pair.items())


def machine_rows(manifest: Manifest) -> list[tuple[str, str]]:
    """Return machine and versions as named values, without what is unknown."""
    fp = manifest.fingerprint
    gpus = fp.get("gpus") or []
    names: dict[str, int] = {}
    for gpu in gpus:
        text = str(gpu.get("name"))
        if gpu.get("power_limit_w"):
            text += f", {gpu['power_limit_w']:.0f} W limit"
        names[text] = names.get(text, 0) + 1
    rows: list[tuple[str, object]] = [
        ("GPUs", "; ".join(f"{n} × {name}" for name, n in names.items()) or "none"),
        ("GPU links", ", ".join(fp.get("topology") or [])),
        ("driver", fp.get("driver")),
        ("processor", fp.get("cpu_model") and f"{fp['cpu_model']}, {fp.get('cpu_cores')} cores"),
        ("memory", fp.get("memory_gib") and f"{fp['memory_gib']} GiB"),
        ("system", fp.get("os") and f"{fp['os']}, kernel {fp.get('kernel')}"),
        ("virtual machine", {True: "yes", False: "no"}.get(fp.get("virtualised", "unknown"))),
        ("Python", fp.get("python")),
        *((name, version) for name, version in (fp.get("packages") or {}).items()),
        ("kit", manifest.kit_version),
        ("git commit", manifest.git_commit),
        ("lock", manifest.lock),
        ("image", manifest.image_digest),
        ("backend", f"{manifest.backend} ({manifest.backend_reason})"),
        ("model pair", pair_text(manifest)),
        (
            "code in the model's folder",
            (manifest.rig.get("server") or {}).get("trust_remote_code")
            and "trusted: the server ran it",
        ),
        ("fingerprint", manifest.fingerprint_hash),
    ]
    return [(name, str(value)) for name, value in rows if value]


def plan_text(manifest: Manifest) -> str:
    """Return what the run set out to measure, in a sentence."""
    plan = manifest.plan
    return (
        f"{', '.join(plan.scenarios)}; {plan.launches} launches × {plan.sweeps} sweeps at "
        f"C = {', '.join(map(str, plan.levels))}; protocol {plan.protocol}; {plan.output_tokens} output tokens a "
        f"request after about {plan.input_tokens} of input"
    )
