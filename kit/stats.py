"""Statistics of nested measurements: sweeps within launches. Pure; numpy and scipy only.

All work is done on logarithms, since noise of throughput is relative and ratios are what is judged. The standard
error of a mean comes from the two variance components (between launches, between sweeps of a launch) with the
degrees of freedom of Satterthwaite (1946).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats as _scipy

Groups = Sequence[Sequence[float]]
Where = Literal["inside", "below", "above", "straddles"]
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A value with its confidence interval; the bounds are infinite where the data cannot give any.

    ``n`` is the number of launches behind it.
    """

    value: float
    low: float
    high: float
    confidence: float
    n: int
    method: str

    @property
    def relative_half_width(self) -> float:
        """Half the interval's width over the value; infinite without an interval."""
        return (self.high - self.low) / 2 / self.value


def _logs(groups: Groups) -> list[np.ndarray]:
    kept = [np.asarray(g, dtype=float) for g in groups if len(g)]
    if not kept:
        raise ValueError("no data")
    for g in kept:
        if not np.all(np.isfinite(g)) or np.any(g <= 0):
            raise ValueError("values must be positive and finite")
    return [np.log(g) for g in kept]


def _components(logs: Sequence[np.ndarray]) -> tuple[float, float, float, float]:
    """Return variance between launches and within, and the degrees of freedom of each (ANOVA, moments)."""
    sizes = np.array([len(g) for g in logs], dtype=float)
    total, k = sizes.sum(), len(logs)
    within_df = total - k
    within = sum(float(((g - g.mean()) ** 2).sum()) for g in logs) / within_df if within_df else 0.0
    if k < 2:
        return 0.0, within, 0.0, within_df
    means = np.array([g.mean() for g in logs])
    grand = float((sizes * means).sum() / total)
    between_ms = float((sizes * (means - grand) ** 2).sum()) / (k - 1)
    n0 = (total - float((sizes**2).sum()) / total) / (k - 1)
    return max(0.0, (between_ms - within) / n0), within, float(k - 1), within_df


def variance_components(groups: Groups) -> tuple[float, float]:
    """Return the coefficients of variation between launches and between sweeps of a launch."""
    between, within, _, _ = _components(_logs(groups))
    return math.sqrt(between), math.sqrt(within)


def _log_mean(groups: Groups, extra_variance: float = 0.0) -> tuple[float, float, float, int]:
    """Return mean, standard error, degrees of freedom of the logarithm, and the number of launches."""
    logs = _logs(groups)
    between, within, between_df, within_df = _components(logs)
    k, total = len(logs), sum(len(g) for g in logs)
    mean = float(np.mean([g.mean() for g in logs]))
    a, b = between / k, within / total
    variance = a + b
    if total < 2:
        return mean, math.inf, 0.0, k
    # Satterthwaite over the two components; a component estimated as zero carries no weight.
    spread = (a**2 / between_df if between_df else 0.0) + (b**2 / within_df if within_df else 0.0)
    df = variance**2 / spread if spread else float(max(within_df, between_df))
    return mean, math.sqrt(variance + extra_variance), df, k


def _interval(
    mean: float, error: float, df: float, k: int, confidence: float, method: str
) -> Estimate:
    if not math.isfinite(error) or df <= 0:
        return Estimate(math.exp(mean), 0.0, math.inf, confidence, k, method)
    half = float(_scipy.t.ppf(0.5 + confidence / 2, df)) * error
    # Beyond any float this is no interval at all.
    if half > 700:
        return Estimate(math.exp(mean), 0.0, math.inf, confidence, k, method)
    return Estimate(
        math.exp(mean), math.exp(mean - half), math.exp(mean + half), confidence, k, method
    )


def hierarchical_ci(groups: Groups, confidence: float = CONFIDENCE) -> Estimate:
    """Return the geometric mean over launches with its interval.

    Args:
        groups: Launches of sweeps; ragged is fine.
        confidence: Two-sided level.

    Raises:
        ValueError: no data, or a value that is not positive and finite.
    """
    return _interval(*_log_mean(groups), confidence, "log-t, Satterthwaite")


def ratio_ci(numerator: Groups, denominator: Groups, confidence: float = CONFIDENCE) -> Estimate:
    """Return the ratio of two scenarios of one run with its interval (two independent means of logarithms)."""
    m1, e1, d1, k1 = _log_mean(numerator)
    m2, e2, d2, k2 = _log_mean(denominator)
    error = math.hypot(e1, e2)
    spread = (e1**4 / d1 if d1 else 0.0) + (e2**4 / d2 if d2 else 0.0)
    df = error**4 / spread if spread and math.isfinite(error) else max(d1, d2)
    return _interval(m1 - m2, error, df, min(k1, k2), confidence, "log-ratio, Welch-Satterthwaite")


def combined_cv(launch_cv: float, sweep_cv: float, launches: int, n: int) -> float:
    """Return the relative standard error of a mean over ``n`` passes in ``launches`` launches."""
    return math.sqrt(launch_cv**2 / launches + sweep_cv**2 / n)


def ratio_to_reference(
    groups: Groups, reference: float, reference_error: float, confidence: float = CONFIDENCE
) -> Estimate:
    """Return the ratio of a mean to a reference whose own relative standard error is ``reference_error``."""
    if not reference > 0:
        raise ValueError("the reference must be positive")
    mean, error, df, k = _log_mean(groups, reference_error**2)
    return _interval(mean - math.log(reference), error, df, k, confidence, "log-ratio to reference")


def relative_spread(groups: Groups) -> float:
    """Return the relative standard error of the mean of ``groups``; zero for one pass."""
    _, error, _, _ = _log_mean(groups)
    return error if math.isfinite(error) else 0.0


def tolerance(reference_error: float, run_error: float, floor: float = 0.05) -> float:
    """Return the tolerance: the floor, or twice the combined standard error where the noise is larger."""
    return max(floor, 2 * math.hypot(reference_error, run_error))


def equivalence(estimate: Estimate, delta: float) -> Where:
    """Return where an interval lies against the band from 1 - delta to 1 + delta."""
    if estimate.high < 1 - delta:
        return "below"
    if estimate.low > 1 + delta:
        return "above"
    if estimate.low >= 1 - delta and estimate.high <= 1 + delta:
        return "inside"
    return "straddles"
