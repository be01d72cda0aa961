"""Intervals for sweeps within launches: of a mean, of a ratio, of a ratio to a reference.

The unit is the launch. Sweeps of one launch share what that server start drew (memory layout,
clocks, autotuning), so only the spread between launches says how far another launch would come
out. Each launch is summed up by the mean (or median) of the logarithms of its sweeps; Student's t
on those sums is exact for any mixture of the two noises. Bootstraps and Satterthwaite's method over
estimated components undercover with few launches (``docs/method.md``).
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
class Noise:
    """Variance of the logarithm of one launch's value, with the degrees of freedom behind it."""

    variance: float
    df: int


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
    def noise(self) -> Noise | None:
        """Noise of one launch; None where fewer than two launches or no noise were recorded."""
        if self.launches < 2 or self.launch_cv is None:
            return None
        variance = self.launch_cv**2 + (self.sweep_cv or 0.0) ** 2 * self.launches / self.n
        return Noise(variance, self.launches - 1)


@dataclass(frozen=True)
class _Sample:
    """Launch values of one side: mean of logarithms, how many, and their noise if they tell any."""

    mean: float
    launches: int
    noise: Noise | None


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
    n = int(ordered.size)
    noise = Noise(float(ordered.var(ddof=1)), n - 1) if n > 1 else None
    return _Sample(math.fsum(ordered) / n, n, noise)


def noise_of(groups: Groups, statistic: Statistic = "mean") -> Noise | None:
    """Return the noise of one launch of ``groups``; None for a single launch.

    Raises:
        ValueError: no data, or a value that is not positive and finite.
    """
    return _sample(_launch_values(groups, statistic)).noise


def _components(groups: Groups) -> tuple[float, float, int, int]:
    """Return variance between launches and within, and the degrees of freedom of each (ANOVA)."""
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
    """Return the coefficients of variation between launches and between sweeps of a launch.

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
    """Return the two noises over several sets, each weighted by its degrees of freedom.

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
    """Return the relative standard error of the mean of ``groups``; zero for a single launch."""
    sample = _sample(_launch_values(groups, "mean"))
    return math.sqrt(sample.noise.variance / sample.launches) if sample.noise else 0.0


def _pool(noises: Iterable[Noise | None]) -> Noise | None:
    known = [n for n in noises if n is not None]
    df = sum(n.df for n in known)
    return Noise(math.fsum(n.variance * n.df for n in known) / df, df) if df else None


def _error(sides: Sequence[_Sample], beside: Sequence[Noise]) -> tuple[float, float, str]:
    """Return standard error, degrees of freedom and method of a sum of independent launch means."""
    shared = _pool([*(s.noise for s in sides), *beside])
    if shared is None:
        return math.inf, 0.0, "none: a single launch"
    if beside:
        # A side that looks noisier than the rest keeps its own noise: sharing may not hide it.
        variance = math.fsum(
            max(shared.variance, s.noise.variance if s.noise else 0.0) / s.launches for s in sides
        )
        return math.sqrt(variance), float(shared.df), "t on launches, noise shared over scenarios"
    own = [s.noise.variance / s.launches for s in sides if s.noise]
    if len(sides) == 1:
        return math.sqrt(own[0]), float(shared.df), "t on launches"
    if min(s.launches for s in sides) >= WELCH_FROM and len(own) == len(sides):
        spread = math.fsum(v**2 / (s.launches - 1) for v, s in zip(own, sides, strict=True))
        df = math.fsum(own) ** 2 / spread if spread else float(shared.df)
        return math.sqrt(math.fsum(own)), df, "Welch's t on launches"
    variance = shared.variance * math.fsum(1 / s.launches for s in sides)
    return math.sqrt(variance), float(shared.df), "t on launches, noise shared by both sides"


def hierarchical_ci(
    groups: Groups,
    statistic: Statistic = "mean",
    confidence: float = CONFIDENCE,
    *,
    beside: Sequence[Noise] = (),
) -> Estimate:
    """Return the geometric mean over launches with its interval: Student's t on the launches.

    Args:
        groups: Launches of sweeps; ragged is fine, empty launches are left out.
        statistic: How the sweeps of a launch are summed up: ``median`` resists a single bad sweep.
        confidence: Two-sided level.
        beside: Noise measured elsewhere at the same level, see :func:`ratio_to_reference`.

    Returns:
        One launch gives infinite bounds: its sweeps cannot say what the next launch does.

    Raises:
        ValueError: no data, or a value that is not positive and finite.
    """
    sample = _sample(_launch_values(groups, statistic))
    error, df, method = _error([sample], beside)
    return log_interval(sample.mean, error, df, sample.launches, confidence, method)


def ratio_ci(
    numerator: Groups,
    denominator: Groups,
    confidence: float = CONFIDENCE,
    *,
    paired: bool = False,
    statistic: Statistic = "mean",
    beside: Sequence[Noise] = (),
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
        beside: Noise measured elsewhere at the same level, see :func:`ratio_to_reference`; not
            with ``paired``, where the noise is that of ratios.

    Raises:
        ValueError: no data, a value that is not positive and finite, unequal numbers of launches
            when paired, or ``beside`` when paired.
    """
    if paired:
        if beside:
            raise ValueError("noise of single launches says nothing of pairs")
        return _paired(numerator, denominator, confidence, statistic)
    a = _sample(_launch_values(numerator, statistic))
    b = _sample(_launch_values(denominator, statistic))
    error, df, method = _error([a, b], beside)
    return log_interval(a.mean - b.mean, error, df, min(a.launches, b.launches), confidence, method)


def _paired(
    numerator: Groups, denominator: Groups, confidence: float, statistic: Statistic
) -> Estimate:
    if len(numerator) != len(denominator):
        raise ValueError("pairs need as many launches on either side")
    whole = [(n, d) for n, d in zip(numerator, denominator, strict=True) if len(n) and len(d)]
    top = _launch_values([n for n, _ in whole], statistic)
    bottom = _launch_values([d for _, d in whole], statistic)
    pairs = _sample(top - bottom)
    error, df, _ = _error([pairs], ())
    return log_interval(pairs.mean, error, df, pairs.launches, confidence, "t on paired launches")


def ratio_to_reference(
    groups: Groups,
    reference: Reference | float,
    reference_error: float = 0.0,
    confidence: float = CONFIDENCE,
    *,
    statistic: Statistic = "mean",
    beside: Sequence[Noise] = (),
) -> Estimate:
    """Return the ratio of a mean over launches to a reference, with the noise of both in it.

    With a :class:`Reference` of two or more launches, the two are compared as two samples (see
    :func:`ratio_ci`): a run of one launch is then judged by the reference's noise. A reference of
    one launch, or without recorded noise, is taken to have the run's noise between launches, and
    its own or else the run's noise between sweeps.

    ``beside`` is how a few launches become enough: the other scenarios of the run and of the
    reference are other servers that met the same level, so their noise is pooled with this one's,
    and its degrees of freedom count; a side that looks noisier than the pool keeps its own.

    Args:
        groups: Launches of sweeps; ragged is fine.
        reference: The reference with its noise, or a bare number.
        reference_error: Standard error, relative, of a bare number; 0 takes it as exact.
        confidence: Two-sided level.
        statistic: How the sweeps of a launch are summed up.
        beside: Noise of other scenarios at the same level: :func:`noise_of`, ``Reference.noise``.

    Raises:
        ValueError: no data, a value that is not positive and finite, or such a reference.
    """
    run = _sample(_launch_values(groups, statistic))
    if isinstance(reference, Reference):
        value = reference.value
        if reference.noise:
            other = _Sample(0.0, reference.launches, reference.noise)
            error, df, method = _error([run, other], beside)
        else:
            error, df, method = _against_unknown(groups, run, reference, beside)
    else:
        value = Reference(reference).value
        if not (reference_error >= 0 and math.isfinite(reference_error)):
            raise ValueError("the reference's error must be finite and not negative")
        error, df, method = _error([run], beside)
        if reference_error and df:
            total = error**2 + reference_error**2
            # A known error has infinite degrees of freedom (Satterthwaite 1946).
            df = df * (total / error**2) ** 2 if error else math.inf
            error = math.sqrt(total)
    return log_interval(run.mean - math.log(value), error, df, run.launches, confidence, method)


def _against_unknown(
    groups: Groups, run: _Sample, reference: Reference, beside: Sequence[Noise]
) -> tuple[float, float, str]:
    """Take a reference of unknown noise to be as noisy as the run."""
    error, df, method = _error([run, _Sample(0.0, reference.launches, None)], beside)
    if not df:
        return error, df, method
    _, within, _, within_df = _components(groups)
    sweeps_of_run = sum(len(g) for g in groups) / run.launches
    sweep_variance = within if reference.sweep_cv is None else reference.sweep_cv**2
    # The reference is the mean of other numbers of sweeps than a launch of the run.
    extra = sweep_variance * reference.launches / reference.n - within / sweeps_of_run
    extra = max(0.0, extra) / reference.launches
    total = error**2 + extra
    if total and within_df:
        df = total**2 / (error**4 / df + extra**2 / within_df)
    return math.sqrt(total), df, "t on launches, reference taken to be as noisy"
