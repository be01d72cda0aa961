"""Compare two runs: two patches, two drivers, two SGLang versions. Pure."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from kit import stats
from kit.records import RunData
from kit.verdict.cause import cause_between
from kit.verdict.guards import all_findings
from kit.verdict.levels import CALL_STATUS, noise_beside, to_interval, tok_s_groups
from kit.verdict.model import Cause, Finding, Interval, LevelStatus

CompareStatus = Literal["NOT WORSE", "WORSE", "INVALID", "INCONCLUSIVE", "NOTHING IN COMMON"]
EXIT_CODES: dict[CompareStatus, int] = {
    "NOT WORSE": 0,
    "WORSE": 1,
    "INVALID": 3,
    "INCONCLUSIVE": 4,
    "NOTHING IN COMMON": 5,
}


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class LevelChange(_Frozen):
    """Throughput of the second run over the first's, at one level of one scenario."""

    scenario: str
    level: int
    ratio: Interval
    tolerance: float
    status: LevelStatus
    cause: Cause | None = None


class Comparison(_Frozen):
    """What two runs have in common and how the second differs; ``differences`` says what was not the same."""

    status: CompareStatus
    exit_code: int
    run_a: str
    run_b: str
    differences: list[str]
    invalid: list[Finding]
    levels: list[LevelChange]

    def lines(self) -> list[str]:
        """Return the comparison as text; the last line is the answer."""
        lines = [f"{self.run_b} against {self.run_a}"]
        lines += [f"  not the same: {text}" for text in self.differences]
        lines += [f"  INVALID [{f.id}] {f.seen}" for f in self.invalid]
        words = {"REPRODUCED": "same"}
        for c in self.levels:
            said = words.get(c.status, c.status)
            lines.append(
                f"  {c.scenario:<14} C={c.level:<4} {c.ratio.text()}  ±{c.tolerance:.0%}  {said}"
            )
            if c.cause:
                lines.append(f"      cause: {c.cause.text}")
        return [*lines, f"{self.status}  {self._headline()}"]

    def _headline(self) -> str:
        worse = [c for c in self.levels if c.status == "SLOWER"]
        unsure = [c for c in self.levels if c.status == "INCONCLUSIVE"]
        shown = worse or unsure
        where = ", ".join(f"{c.scenario} at C={c.level} ({c.ratio.text()})" for c in shown[:4])
        return {
            "NOT WORSE": f"no level of {len(self.levels)} is slower",
            "WORSE": where,
            "INVALID": "a run with invalid findings cannot be compared",
            "INCONCLUSIVE": f"too noisy to tell: {where}",
            "NOTHING IN COMMON": "the runs share no scenario and level",
        }[self.status]


def _differences(a: RunData, b: RunData) -> list[str]:
    """Return what differs between the two runs' conditions, in words."""
    found = []
    one, two = a.manifest, b.manifest
    for name in ("protocol", "output_tokens", "input_tokens"):
        old, new = getattr(one.plan, name), getattr(two.plan, name)
        if old != new:
            found.append(f"{name.replace('_', ' ')}: {old} → {new}")
    if one.rig.get("name") != two.rig.get("name"):
        found.append(f"rig: {one.rig.get('name')} → {two.rig.get('name')}")
    if one.fingerprint_hash != two.fingerprint_hash:
        keys = sorted(
            k
            for k in one.fingerprint.keys() | two.fingerprint.keys()
            if one.fingerprint.get(k) != two.fingerprint.get(k)
        )
        found.append(f"machine or software: {', '.join(keys) or 'unknown'}")
    if one.pair != two.pair:
        found.append("model pair")
    patches = [
        sorted({p for launch in run.launches for p in launch.proof.patches_live}) for run in (a, b)
    ]
    if patches[0] != patches[1]:
        before, after = (", ".join(p) or "none" for p in patches)
        found.append(f"patches live: {before} → {after}")
    return found


def compare_runs(a: RunData, b: RunData) -> Comparison:
    """Return how run ``b`` differs from run ``a``: SLOWER and FASTER over all levels together, by Holm's test."""
    invalid = [f for run in (a, b) for f in all_findings(run, None) if f.severity == "invalid"]
    ratios: dict[tuple[str, int], stats.Estimate] = {}
    for scenario in a.scenarios():
        for level in a.manifest.plan.levels:
            before, after = tok_s_groups(a, scenario, level), tok_s_groups(b, scenario, level)
            # The same level may send other numbers of requests: then it is another experiment.
            same = a.manifest.plan.requests.get(level) == b.manifest.plan.requests.get(level)
            if before and after and same:
                beside = [n for run in (a, b) for n in noise_beside(run, level, [scenario])]
                ratios[scenario, level] = stats.ratio_ci(after, before, beside=beside)
    tolerances = {key: stats.tolerance_for(ratio) for key, ratio in ratios.items()}
    called = stats.calls(ratios, tolerances) if ratios else {}
    levels = []
    for (scenario, level), ratio in ratios.items():
        status = CALL_STATUS[called[scenario, level]]
        moved = status in ("SLOWER", "FASTER")
        levels.append(
            LevelChange(
                scenario=scenario,
                level=level,
                ratio=to_interval(ratio),
                tolerance=tolerances[scenario, level],
                status=status,
                cause=cause_between(a, b, scenario, level) if moved else None,
            )
        )
    found = {c.status for c in levels}
    answer: CompareStatus
    if invalid:
        answer = "INVALID"
    elif not levels:
        answer = "NOTHING IN COMMON"
    elif "SLOWER" in found:
        answer = "WORSE"
    else:
        answer = "INCONCLUSIVE" if "INCONCLUSIVE" in found else "NOT WORSE"
    return Comparison(
        status=answer,
        exit_code=EXIT_CODES[answer],
        run_a=a.manifest.run_id,
        run_b=b.manifest.run_id,
        differences=_differences(a, b),
        invalid=invalid,
        levels=levels,
    )
