"""Intervals for sweeps within launches: of a mean, of a ratio of two scenarios, of a ratio to a
reference.

The unit is the launch. Sweeps of one launch share what that server start drew (memory layout,
clocks, autotuning), so only the spread between launches says how far another launch would come
out. Each launch is summed up by the mean (or median) of the logarithms of its sweeps; Student's t
on those sums is exact for any mixture of the two noises. Bootstraps and Satterthwaite's method
over estimated components undercover with few launches (``docs/method.md``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kit.stats.estimate import CONFIDENCE, Array, Estimate, checked, log_interval

Groups = Sequence[Sequence[float]]
Statistic = Literal["mean", "median"]
# With this many launches on both sides each side's noise is estimated by itself (Welch); below,
# they share one.
WELCH_FROM = 3


@dataclass(frozen=True)
class Reference:
    """A reference number with what is known of its noise.

    Attributes:
        value: The number, positive.
        launches: Launches behind it.
        n: Sweeps behind it, over all launches.
        launch_cv: Noise between launches, relative; None if unknown.
        sweep_cv: Noise between sweeps of a launch, relative; None if unknown.
    """

    value: float
    launches: int = 1
    n: int = 1
    launch_cv: float | None = None
    sweep_cv: float | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for numbers that cannot be."""
        if not (self.value > 0 and math.isfinite(self.value)):
            raise ValueError("the reference must be positive and finite")
        if self.launches < 1 or self.n < self.launches:
            raise ValueError("a reference needs at least one launch and one sweep in each")
        for cv in (self.launch_cv, self.sweep_cv):
            if cv is not None and not (cv >= 0 and math.isfinite(cv)):
                raise ValueError("a coefficient of variation must be finite and not negative")

    @property
    def variance(self) -> float | None:
        """Variance of one launch's mean, relative; None where fewer than two launches or no noise
        were recorded.
        """
        if self.launches < 2 or self.launch_cv is None:
            return None
        return self.launch_cv**2 + (self.sweep_cv or 0.0) ** 2 * self.launches / self.n


@dataclass(frozen=True)
class _Sample:
    """Launch values of one side: mean of logarithms, variance between launches, and how many."""

    mean: float
    variance: float
    launches: int


def _logs(groups: Groups) -> list[Array]:
    found = [np.log(checked(g, positive=True)) for g in groups if len(g)]
    if not found:
        raise ValueError("no data")
    return found


def _launch_values(groups: Groups, statistic: Statistic) -> Array:
    logs = _logs(groups)
    if statistic == "median":
        return np.array([np.median(g) for g in logs], dtype=np.float64)
    return np.array([g.mean() for g in logs], dtype=np.float64)


def _sample(values: Array) -> _Sample:
    ordered = np.sort(values)
    variance = float(ordered.var(ddof=1)) if ordered.size > 1 else math.nan
    return _Sample(math.fsum(ordered) / ordered.size, variance, int(ordered.size))


def _components(groups: Groups) -> tuple[float, float, int, int]:
    """Return variance between launches, variance within, and the degrees of freedom of each
    (moments of ANOVA).
    """
    logs = _logs(groups)
    sizes = np.array([g.size for g in logs], dtype=np.float64)
    total, k = float(sizes.sum()), len(logs)
    within_df = int(total) - k
    within = sum(float(((g - g.mean()) ** 2).sum()) for g in logs) / within_df if within_df else 0.0
    if k < 2:
        return math.nan, within, 0, within_df
    means = np.array([g.mean() for g in logs])
    grand = float((sizes * means).sum()) / total
    between = float((sizes * (means - grand) ** 2).sum()) / (k - 1)
    n0 = (total - float((sizes**2).sum()) / total) / (k - 1)
    return max(0.0, (between - within) / n0), within, k - 1, within_df


def variance_components(groups: Groups) -> tuple[float, float]:
    """Return the noise between launches and between sweeps of a launch, as coefficients of
    variation.

    Args:
        groups: Launches of sweeps; ragged is fine.

    Returns:
        ``(launch_cv, sweep_cv)``. One launch cannot tell its own noise: ``launch_cv`` is NaN.
        With one sweep a launch the two cannot be told apart: all of it counts as ``launch_cv``
        and ``sweep_cv`` is 0.

    Raises:
        ValueError: no data, or a value that is not positive and finite.
    """
    between, within, _, _ = _components(groups)
    return math.sqrt(between), math.sqrt(within)


def pooled_cv(sets: Iterable[Groups]) -> tuple[float, float]:
    """Return the two noises over several levels or scenarios, each weighted by its degrees of
    freedom.

    Raises:
        ValueError: no set has two launches, or a value is not positive and finite.
    """
    parts = [_components(groups) for groups in sets]
    launch = [(v, df) for v, _, df, _ in parts if df]
    sweep = [(v, df) for _, v, _, df in parts if df]
    if not launch:
        raise ValueError("two launches are needed to tell the noise between launches")

    def pool(pairs: list[tuple[float, int]]) -> float:
        return math.sqrt(math.fsum(v * df for v, df in pairs) / sum(df for _, df in pairs))

    return pool(launch), pool(sweep) if sweep else 0.0


def combined_cv(launch_cv: float, sweep_cv: float, launches: int, n: int) -> float:
    """Return the relative standard error of a mean over ``n`` sweeps in ``launches`` launches."""
    if launches < 1 or n < launches:
        raise ValueError("at least one launch and one sweep in each are needed")
    return math.sqrt(launch_cv**2 / launches + sweep_cv**2 / n)


def relative_spread(groups: Groups) -> float:
    """Return the relative standard error of the mean of ``groups``; zero for one launch, which
    cannot tell.
    """
    sample = _sample(_launch_values(groups, "mean"))
    return math.sqrt(sample.variance / sample.launches) if sample.launches > 1 else 0.0


def hierarchical_ci(
    groups: Groups, statistic: Statistic = "mean", confidence: float = CONFIDENCE
) -> Estimate:
    """Return the geometric mean over launches with its interval: Student's t on the launches.

    Args:
        groups: Launches of sweeps; ragged is fine, empty launches are left out.
        statistic: How the sweeps of a launch are summed up: ``median`` resists a single bad sweep.
        confidence: Two-sided level.

    Returns:
        One launch gives infinite bounds: sweeps of it cannot say what the next launch does.

    Raises:
        ValueError: no data, or a value that is not positive and finite.
    """
    sample = _sample(_launch_values(groups, statistic))
    error = math.sqrt(sample.variance / sample.launches) if sample.launches > 1 else math.inf
    return log_interval(
        sample.mean, error, sample.launches - 1.0, sample.launches, confidence, "t on launches"
    )


def _two_samples(a: _Sample, b: _Sample) -> tuple[float, float, str]:
    """Return standard error, degrees of freedom and method of a difference of launch means."""
    known = [s for s in (a, b) if math.isfinite(s.variance)]
    if not known:
        return math.inf, 0.0, "none: one launch on each side"
    if min(a.launches, b.launches) >= WELCH_FROM and len(known) == 2:
        va, vb = a.variance / a.launches, b.variance / b.launches
        spread = va**2 / (a.launches - 1) + vb**2 / (b.launches - 1)
        df = (va + vb) ** 2 / spread if spread else float(a.launches + b.launches - 2)
        return math.sqrt(va + vb), df, "Welch's t on launches"
    df = float(sum(s.launches - 1 for s in known))
    pooled = math.fsum(s.variance * (s.launches - 1) for s in known) / df
    error = math.sqrt(pooled * (1 / a.launches + 1 / b.launches))
    return error, df, "t on launches, noise shared by both sides"


def ratio_ci(
    numerator: Groups,
    denominator: Groups,
    confidence: float = CONFIDENCE,
    *,
    paired: bool = False,
    statistic: Statistic = "mean",
) -> Estimate:
    """Return the ratio of two scenarios of one run with its interval.

    Unpaired, from three launches each on: Welch's t on the launches; with fewer, both sides share
    one noise. Paired: t on the ratios of launches of the same index, which removes a drift that
    both share and costs half the degrees of freedom; interleaving (A B C, C B A) makes the pairs
    neighbours in time.

    Args:
        numerator: Launches of sweeps of one scenario.
        denominator: The same of the other; with ``paired`` as many launches.
        confidence: Two-sided level.
        paired: Pair the launches by index.
        statistic: How the sweeps of a launch are summed up.

    Raises:
        ValueError: no data, a value that is not positive and finite, or unequal numbers of
            launches when paired.
    """
    if paired and len(numerator) != len(denominator):
        raise ValueError("pairs need as many launches on either side")
    if paired:
        whole = [(n, d) for n, d in zip(numerator, denominator, strict=True) if len(n) and len(d)]
        top = _launch_values([n for n, _ in whole], statistic)
        bottom = _launch_values([d for _, d in whole], statistic)
        pairs = _sample(top - bottom)
        error = math.sqrt(pairs.variance / pairs.launches) if pairs.launches > 1 else math.inf
        return log_interval(
            pairs.mean,
            error,
            pairs.launches - 1.0,
            pairs.launches,
            confidence,
            "t on paired launches",
        )
    a = _sample(_launch_values(numerator, statistic))
    b = _sample(_launch_values(denominator, statistic))
    error, df, method = _two_samples(a, b)
    return log_interval(a.mean - b.mean, error, df, min(a.launches, b.launches), confidence, method)


def ratio_to_reference(
    groups: Groups,
    reference: Reference | float,
    reference_error: float = 0.0,
    confidence: float = CONFIDENCE,
    *,
    statistic: Statistic = "mean",
) -> Estimate:
    """Return the ratio of a mean over launches to a reference, with the noise of both in the
    interval.

    With a :class:`Reference` of two or more launches, the two are compared as two samples (see
    :func:`ratio_ci`): a run of one launch is then judged by the reference's noise. A reference of
    one launch, or without recorded noise, is taken to have the run's noise between launches, and
    its own or else the run's noise between sweeps.

    Args:
        groups: Launches of sweeps; ragged is fine.
        reference: The reference with its noise, or a bare number.
        reference_error: Standard error, relative, of a bare number; 0 takes it as exact.
        confidence: Two-sided level.
        statistic: How the sweeps of a launch are summed up.

    Raises:
        ValueError: no data, a value that is not positive and finite, or such a reference.
    """
    run = _sample(_launch_values(groups, statistic))
    if isinstance(reference, Reference):
        error, df, method = _against(groups, run, reference)
        value = reference.value
    else:
        value = Reference(reference).value
        if not (reference_error >= 0 and math.isfinite(reference_error)):
            raise ValueError("the reference's error must be finite and not negative")
        error, df, method = _against_known(run, reference_error)
    return log_interval(run.mean - math.log(value), error, df, run.launches, confidence, method)


def _against_known(run: _Sample, reference_error: float) -> tuple[float, float, str]:
    if run.launches < 2:
        return math.inf, 0.0, "none: one launch"
    own = run.variance / run.launches
    total = own + reference_error**2
    # A known error has infinite degrees of freedom (Satterthwaite 1946).
    df = (run.launches - 1) * (total / own) ** 2 if own else math.inf
    return math.sqrt(total), df, "t on launches, reference of known error"


def _against(groups: Groups, run: _Sample, reference: Reference) -> tuple[float, float, str]:
    variance = reference.variance
    if variance is not None:
        return _two_samples(run, _Sample(0.0, variance, reference.launches))
    if run.launches < 2:
        return math.inf, 0.0, "none: one launch and a reference of unknown noise"
    _, within, _, _ = _components(groups)
    sweeps_of_run = sum(len(g) for g in groups) / run.launches
    sweep_variance = within if reference.sweep_cv is None else reference.sweep_cv**2
    # One launch of the reference varies as one of the run, but for the sweeps it is the mean of.
    extra = sweep_variance * reference.launches / reference.n - within / sweeps_of_run
    own = run.variance / run.launches
    total = own + (run.variance + max(0.0, extra)) / reference.launches
    return math.sqrt(total), run.launches - 1.0, "t on launches, reference taken to be as noisy"
