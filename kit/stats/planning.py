"""How many launches and sweeps a precision takes, and what a budget of time buys."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from kit.stats.estimate import CONFIDENCE, Array, check_confidence
from kit.stats.nested import WELCH_FROM

MAX_LAUNCHES = 30
MAX_SWEEPS = 30
SEED = 20260102
DRAWS = 20000


@dataclass(frozen=True)
class Plan:
    """Repetitions with the precision to expect.

    Attributes:
        launches: Server starts of each scenario.
        sweeps: Sweeps of each launch.
        expected_half_width: Mean half-width of the ratio's interval, relative.
        seconds: What it takes.
        reaches_target: Whether the expected half-width is at or below the target.
        fits_budget: Whether it takes no longer than the budget.
    """

    launches: int
    sweeps: int
    expected_half_width: float
    seconds: float
    reaches_target: bool
    fits_budget: bool


def expected_half_width(
    launch_cv: float,
    sweep_cv: float,
    launches: int,
    sweeps: int,
    *,
    other_launches: int | None = None,
    other_sweeps: int | None = None,
    scenarios: int = 1,
    confidence: float = CONFIDENCE,
) -> float:
    """Return the mean half-width, relative, of a ratio's interval; both sides equally noisy.

    Args:
        launch_cv: Noise between launches, relative.
        sweep_cv: Noise between sweeps of a launch, relative.
        launches: Launches of the run.
        sweeps: Sweeps of each.
        other_launches: Launches of the other side: the reference's; None for a scenario of the
            same run.
        other_sweeps: Sweeps of each of those; None for the run's.
        scenarios: Scenarios whose noise is shared (``beside``); 1 shares none.
        confidence: Two-sided level.

    Returns:
        Infinite where neither side has two launches.
    """
    other_launches = launches if other_launches is None else other_launches
    other_sweeps = sweeps if other_sweeps is None else other_sweeps
    if min(launches, sweeps, other_launches, other_sweeps, scenarios) < 1:
        raise ValueError("launches, sweeps and scenarios must be at least 1")
    for cv in (launch_cv, sweep_cv):
        if not (cv >= 0 and math.isfinite(cv)):
            raise ValueError("a coefficient of variation must be finite and not negative")
    check_confidence(confidence)
    a = (launch_cv**2 + sweep_cv**2 / sweeps) / launches
    b = (launch_cv**2 + sweep_cv**2 / other_sweeps) / other_launches
    if launches + other_launches < 3:
        return math.inf
    return _widths_per_error(launches, other_launches, scenarios, confidence) * math.sqrt(a + b)


@functools.lru_cache(maxsize=4096)
def _widths_per_error(launches: int, other: int, scenarios: int, confidence: float) -> float:
    """Return the mean half-width over the true standard error, by simulating estimated noise.

    It is what :func:`kit.stats.ratio_ci` does with normal data: the estimated noise of each side,
    and with it the degrees of freedom, differ from run to run.
    """
    rng = np.random.default_rng(SEED)

    def estimated(df: int) -> Array:
        return rng.chisquare(df, DRAWS) / df if df else np.zeros(DRAWS)

    dfs = np.array([launches - 1, other - 1, (launches + other - 2) * (scenarios - 1)])
    here, there, rest = (estimated(int(df)) for df in dfs)
    shared = (here * dfs[0] + there * dfs[1] + rest * dfs[2]) / dfs.sum()
    degrees: Array | float = float(dfs.sum())
    if scenarios > 1:
        variance = np.maximum(here, shared) / launches + np.maximum(there, shared) / other
    elif min(launches, other) >= WELCH_FROM:
        a, b = here / launches, there / other
        variance = a + b
        degrees = variance**2 / (a**2 / dfs[0] + b**2 / dfs[1])
    else:
        variance = shared * (1 / launches + 1 / other)
    half = special.stdtrit(degrees, 0.5 + confidence / 2) * np.sqrt(variance)
    return float(half.mean()) / math.sqrt(1 / launches + 1 / other)


def plan_repetitions(
    launch_cv: float,
    sweep_cv: float,
    cost_launch_s: float,
    cost_sweep_s: float,
    target_half_width: float,
    budget_s: float | None = None,
    *,
    other_launches: int | None = None,
    other_sweeps: int | None = None,
    scenarios: int = 1,
    min_launches: int = 2,
    max_launches: int = MAX_LAUNCHES,
    max_sweeps: int = MAX_SWEEPS,
    confidence: float = CONFIDENCE,
) -> Plan:
    """Return the cheapest repetitions that reach a half-width, or the most precise ones within a
    budget.

    Every choice of launches and sweeps is looked at. If some reach the target within the budget,
    the cheapest of them is returned; otherwise the most precise one within the budget; if nothing
    fits, the cheapest of all, with ``fits_budget`` false.

    Args:
        launch_cv: Noise between launches, relative, from a reference or a pilot.
        sweep_cv: Noise between sweeps of a launch, relative.
        cost_launch_s: Seconds of one launch of all scenarios with its warm-up, without sweeps.
        cost_sweep_s: Seconds of one sweep of all scenarios.
        target_half_width: Wanted half-width of the ratio's interval, relative.
        budget_s: Seconds there are; None for any.
        other_launches: Launches of the reference; None to plan for the ratio of two scenarios of
            the run.
        other_sweeps: Sweeps of each of those; None for the run's.
        scenarios: Scenarios whose noise is shared (``beside``); 1 shares none.
        min_launches: Fewest launches to consider.
        max_launches: Most launches to consider.
        max_sweeps: Most sweeps of a launch to consider.
        confidence: Two-sided level.

    Raises:
        ValueError: a negative noise, a cost or target that is not positive, or no choice at all.
    """
    if not (cost_launch_s >= 0 and cost_sweep_s > 0):
        raise ValueError("costs must be positive")
    if not target_half_width > 0:
        raise ValueError("the target must be positive")
    if not 1 <= min_launches <= max_launches or max_sweeps < 1:
        raise ValueError("there must be at least one choice of launches and sweeps")
    limit = math.inf if budget_s is None else budget_s
    plans = []
    for launches in range(min_launches, max_launches + 1):
        for sweeps in range(1, max_sweeps + 1):
            width = expected_half_width(
                launch_cv,
                sweep_cv,
                launches,
                sweeps,
                other_launches=other_launches,
                other_sweeps=other_sweeps,
                scenarios=scenarios,
                confidence=confidence,
            )
            seconds = launches * (cost_launch_s + sweeps * cost_sweep_s)
            good, fits = width <= target_half_width, seconds <= limit
            plans.append(Plan(launches, sweeps, width, seconds, good, fits))
    fitting = [p for p in plans if p.fits_budget]
    reaching = [p for p in fitting if p.reaches_target]
    if reaching:
        return min(reaching, key=lambda p: (p.seconds, p.expected_half_width))
    if fitting:
        return min(fitting, key=lambda p: (p.expected_half_width, p.seconds))
    return min(plans, key=lambda p: p.seconds)
