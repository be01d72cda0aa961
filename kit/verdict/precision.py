"""Whether to measure more, and how much: the half-width of every deciding ratio against half its tolerance. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kit import stats
from kit.golden import Golden
from kit.records import RunData
from kit.verdict.claims import claim_ratios
from kit.verdict.comparable import comparability
from kit.verdict.guards import all_findings
from kit.verdict.levels import level_ratios, noisy_reference, tok_s_groups
from kit.verdict.model import Finding, LevelVerdict, count


@dataclass(frozen=True)
class Wide:
    """A deciding ratio whose interval is wider than wanted.

    Attributes:
        what: Which ratio, in words.
        half_width: Half of its interval, relative; infinite where one launch gives none.
        wanted: Half-width to reach: half the tolerance.
    """

    what: str
    half_width: float
    wanted: float

    def text(self) -> str:
        """Return ``spec-v2/baseline at C=4 is known to ±6.1 %, ±2.5 % is wanted``."""
        if not math.isfinite(self.half_width):
            return f"{self.what} has no interval yet, ±{self.wanted:.1%} is wanted"
        return f"{self.what} is known to ±{self.half_width:.1%}, ±{self.wanted:.1%} is wanted"


def _deciding(run: RunData, golden: Golden) -> Iterator[tuple[str, stats.Estimate, float]]:
    """Yield each ratio that decides the verdict, with its name and tolerance."""
    for claim in golden.claims:
        for level, ratio in claim_ratios(run, claim):
            where = f"{claim.numerator}/{claim.denominator} at C={level}"
            yield where, ratio, golden.tolerance.floor
    if comparability(run, golden).same:
        for verdict, ratio_to_golden in level_ratios(run, golden):
            if ratio_to_golden and verdict.tolerance and not verdict.replicate:
                where = f"{verdict.scenario} at C={verdict.level}, against golden,"
                yield where, ratio_to_golden, verdict.tolerance


def too_wide(run: RunData, golden: Golden | None) -> list[Wide]:
    """Return the deciding ratios that are not known well enough, the widest first.

    Empty when all are, when there is nothing to judge against, and when the run is INVALID: more of the same
    would not mend it. The rule looks at widths only, never at where a ratio lies, so that going on until it is
    met does not favour either answer.
    """
    if golden is None or any(f.severity == "invalid" for f in all_findings(run, golden)):
        return []
    wide = [
        Wide(what, ratio.relative_half_width, tolerance / 2)
        for what, ratio, tolerance in _deciding(run, golden)
        if not stats.enough(ratio, tolerance)
    ]
    return sorted(wide, key=lambda w: -w.half_width / w.wanted)


MOST_ADVISED = 12


def _launches_for(run: RunData, golden: Golden, level: LevelVerdict) -> tuple[int | None, bool]:
    """Return the launches at which a level's interval is expected to be narrow enough, and whether golden limits it."""
    groups = tok_s_groups(run, level.scenario, level.level)
    reference = golden.reference(level.scenario, level.level)
    if reference is None or level.tolerance is None:
        return None, False
    noise = [n for n in (stats.noise_of(groups), noisy_reference(reference).noise) if n]
    df = sum(n.df for n in noise)
    if not df:
        return None, False
    # Of a launch's mean, its sweeps included: as many sweeps are taken to follow.
    launch_cv = math.sqrt(sum(n.variance * n.df for n in noise) / df)

    def width(launches: int, other: int) -> float:
        return stats.expected_half_width(launch_cv, 0.0, launches, 1, other_launches=other)

    wanted = level.tolerance / 2
    for launches in range(2, MOST_ADVISED + 1):
        if width(launches, reference.launches) <= wanted:
            return launches, False
    return None, width(MOST_ADVISED, MOST_ADVISED) <= wanted


def advice(run: RunData, golden: Golden) -> Iterator[Finding]:
    """Yield one note on an INCONCLUSIVE run: which ratio is not known well enough, and what would mend it."""
    wide = too_wide(run, golden)
    if not wide:
        return
    remedy = "Make the machine quieter (end other work, lock clocks), or measure more launches: --launches."
    if comparability(run, golden).same:
        plans = [_launches_for(run, golden, v) for v, ratio in level_ratios(run, golden) if ratio]
        launches = [n for n, _ in plans]
        if launches and all(launches):
            most = max(n for n in launches if n)
            remedy = (
                f"With this noise about {most} launches are expected to decide: --launches {most}."
            )
        elif any(limited for _, limited in plans):
            remedy = (
                "Golden's own launches are the limit: record a golden file of more launches, and measure more of them; "
                "or make the machine quieter."
            )
    yield Finding(
        id="too-noisy",
        severity="note",
        seen=f"{count(len(wide), 'deciding ratio')} not known well enough; the widest: {wide[0].text()}.",
        why="An interval that is wider than that neither shows a difference nor rules one out.",
        remedy=remedy,
    )
