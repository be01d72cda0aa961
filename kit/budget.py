"""What a budget of time buys: launches and sweeps that fit, and the precision to expect. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kit import stats
from kit.golden import Golden
from kit.records import PlanConfig, RunData
from kit.schedule import Clock
from kit.verdict.levels import tok_s_groups

# Where neither a golden file nor an earlier run tells: warm passes of a server spread by 4 to 7 % end to end,
# and servers started again by about as much.
ASSUMED_LAUNCH_CV = 0.02
ASSUMED_SWEEP_CV = 0.03


@dataclass(frozen=True)
class Noise:
    """Relative noise between launches and between sweeps of a launch, and where the figures come from."""

    launch_cv: float
    sweep_cv: float
    source: str


@dataclass(frozen=True)
class Budgeted:
    """A plan for a budget.

    Attributes:
        plan: Launches, sweeps, expected half-width of a deciding ratio, seconds.
        noise: What it was planned with.
        target: Half-width that would be enough.
    """

    plan: stats.Plan
    noise: Noise
    target: float

    def text(self) -> str:
        """Return one sentence: what is going to be done and how precise it is expected to be."""
        p = self.plan
        what = f"{p.launches} launch{'es' if p.launches > 1 else ''} × {p.sweeps} sweep{'s' if p.sweeps > 1 else ''}"
        noise = (
            f"noise {self.noise.launch_cv:.1%} between launches and {self.noise.sweep_cv:.1%} between sweeps, "
            f"{self.noise.source}"
        )
        if math.isinf(p.expected_half_width):
            width = (
                "one launch gives no interval, so the verdict can only be INCONCLUSIVE or INVALID"
            )
        else:
            enough = "enough" if p.reaches_target else "not enough"
            width = (
                f"ratios expected to ±{p.expected_half_width:.1%}, {enough} for the ±{self.target:.1%} "
                "that a verdict wants"
            )
        fits = (
            ""
            if p.fits_budget
            else " (by estimate that does not fit; it stops when the time is up)"
        )
        return f"{what}, about {p.seconds / 60:.1f} min{fits}; {width} ({noise})"


def _golden_noise(golden: Golden) -> Iterator[tuple[float, float, int]]:
    for levels in golden.throughput.values():
        for reference in levels.values():
            if reference.launches > 1 and reference.launch_cv is not None:
                yield reference.launch_cv, reference.sweep_cv or 0.0, reference.launches - 1


def noise_for(golden: Golden | None, earlier: RunData | None) -> Noise:
    """Return the noise to plan with: golden's, else an earlier run's of the same rig, else an assumed one."""
    known = list(_golden_noise(golden)) if golden else []
    if known:
        weight = sum(df for _, _, df in known)
        launch = math.sqrt(sum(a * a * df for a, _, df in known) / weight)
        sweep = math.sqrt(sum(b * b * df for _, b, df in known) / weight)
        return Noise(launch, sweep, "golden's")
    if earlier is not None:
        sets = [
            tok_s_groups(earlier, s, c)
            for s in earlier.scenarios()
            for c in earlier.manifest.plan.levels
        ]
        try:
            launch, sweep = stats.pooled_cv([g for g in sets if g])
        except ValueError:
            pass  # one launch only: it cannot tell
        else:
            return Noise(launch, sweep, f"those of the run {earlier.manifest.run_id}")
    return Noise(ASSUMED_LAUNCH_CV, ASSUMED_SWEEP_CV, "assumed")


def reference_size(golden: Golden | None) -> tuple[int, int] | None:
    """Return launches and sweeps a launch of golden's references; None where only claims decide."""
    if golden is None or golden.decides == "claims" or not golden.throughput:
        return None
    references = [r for levels in golden.throughput.values() for r in levels.values()]
    launches = min(r.launches for r in references)
    return launches, max(1, min(r.n for r in references) // launches)


def plan_for(
    budget_s: float,
    config: PlanConfig,
    clock: Clock,
    golden: Golden | None,
    earlier: RunData | None = None,
) -> Budgeted:
    """Return the repetitions that fit into ``budget_s`` seconds: the cheapest that are precise enough, else the most
    precise. If not even one launch fits by estimate, that one is planned and ``fits_budget`` is false.

    Args:
        budget_s: Seconds there are.
        config: Scenarios, levels and requests of the run; its launches and sweeps do not matter.
        clock: Knows or guesses what steps take.
        golden: For its noise, tolerance and size.
        earlier: A run of the same rig, for its noise.
    """
    noise = noise_for(golden, earlier)
    target = (golden.tolerance.floor if golden else stats.MIN_TOLERANCE) / 2
    launch_s, sweep_s = clock.costs()
    other = reference_size(golden)
    plan = stats.plan_repetitions(
        noise.launch_cv,
        noise.sweep_cv,
        launch_s,
        sweep_s,
        target,
        budget_s,
        other_launches=other[0] if other else None,
        other_sweeps=other[1] if other else None,
        scenarios=len(config.scenarios),
        min_launches=1,
    )
    return Budgeted(plan, noise, target)
