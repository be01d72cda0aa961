"""An estimate with its interval, and the intervals of one plain sample."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import special
from scipy import stats as scipy_stats

if TYPE_CHECKING:
    from collections.abc import Iterable

Array = NDArray[np.float64]
CONFIDENCE = 0.95
# The bootstrap draws from a fixed stream, so that the same data always give the same interval.
BOOTSTRAP_SEED = 20260101
BOOTSTRAP_RESAMPLES = 4999


@dataclass(frozen=True)
class Estimate:
    """A value with its confidence interval.

    Where the data can give no interval the bounds are infinite (0 and infinity for a ratio),
    never narrow.

    Attributes:
        value: The point estimate.
        low: Lower bound.
        high: Upper bound.
        confidence: Two-sided level of the interval.
        n: Independent units behind it: launches for nested data, values for a plain sample.
        method: How it was made, in words.
        log_error: Standard error of the logarithm of ``value``; NaN where the method has none.
        df: Degrees of freedom of ``log_error``; infinite for a known error.
    """

    value: float
    low: float
    high: float
    confidence: float
    n: int
    method: str
    log_error: float = math.nan
    df: float = math.nan

    @property
    def half_width(self) -> float:
        """Half the interval's width, in units of ``value``; infinite without an interval."""
        return (self.high - self.low) / 2

    @property
    def relative_half_width(self) -> float:
        """Half the interval's width over the value's magnitude; infinite without an interval."""
        return self.half_width / abs(self.value) if self.value else math.inf


def checked(values: Iterable[float], *, positive: bool = False) -> Array:
    """Return ``values`` as a sorted array of shape (n,): results must not depend on order.

    Raises:
        ValueError: empty, not finite or, with ``positive``, not above zero.
    """
    array = np.sort(np.asarray(list(values), dtype=np.float64))
    if array.ndim != 1 or not array.size:
        raise ValueError("at least one value is needed")
    if not np.isfinite(array).all():
        raise ValueError("values must be finite")
    if positive and array[0] <= 0:
        raise ValueError("values must be positive")
    return array


def check_confidence(confidence: float) -> None:
    """Raise ValueError unless ``confidence`` lies strictly between 0 and 1."""
    if not 0 < confidence < 1:
        raise ValueError("confidence must lie between 0 and 1")


def t_quantile(confidence: float, df: float) -> float:
    """Return the two-sided quantile of Student's t; that of the normal for infinite ``df``."""
    q = 0.5 + confidence / 2
    return float(special.ndtri(q) if math.isinf(df) else special.stdtrit(df, q))


def t_tail(t: float, df: float) -> float:
    """Return the probability of a value above ``t`` under Student's t."""
    return float(special.ndtr(-t) if math.isinf(df) else special.stdtr(df, -t))


def log_interval(
    mean: float, error: float, df: float, n: int, confidence: float, method: str
) -> Estimate:
    """Return the estimate whose logarithm is ``mean`` with standard error ``error``."""
    check_confidence(confidence)
    value = math.exp(mean)
    if not math.isfinite(error) or not df > 0:
        return Estimate(value, 0.0, math.inf, confidence, n, method, math.inf, 0.0)
    half = t_quantile(confidence, df) * error if error else 0.0
    # An interval of a factor of 10^300 is none, and its exponential would overflow.
    low, high = (math.exp(mean - half), math.exp(mean + half)) if half < 690 else (0.0, math.inf)
    return Estimate(value, min(low, value), max(high, value), confidence, n, method, error, df)


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean of positive values.

    Raises:
        ValueError: empty, not finite or not positive.
    """
    logs = np.log(checked(values, positive=True))
    return math.exp(math.fsum(logs) / logs.size)


def mean_ci(values: Iterable[float], confidence: float = CONFIDENCE) -> Estimate:
    """Return the arithmetic mean with Student's interval; one value has infinite bounds.

    Raises:
        ValueError: empty or not finite, or a confidence outside (0, 1).
    """
    check_confidence(confidence)
    x = checked(values)
    n = int(x.size)
    mean = math.fsum(x) / n
    if n < 2:
        return Estimate(mean, -math.inf, math.inf, confidence, n, "none: one value")
    half = t_quantile(confidence, n - 1) * float(x.std(ddof=1)) / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, confidence, n, "Student's t", df=n - 1.0)


def least_n_for_median(confidence: float = CONFIDENCE) -> int:
    """Return the smallest sample whose extremes cover the median with ``confidence``: 1 -
    2^(1-n).
    """
    check_confidence(confidence)
    return max(2, math.ceil(1 - math.log2(1 - confidence) - 1e-12))


def median_ci(values: Iterable[float], confidence: float = CONFIDENCE) -> Estimate:
    """Return the median with its BCa bootstrap interval (Efron 1987).

    The extremes of n values cover the median with probability 1 - 2^(1-n) at best, so no
    distribution-free interval exists below six values at 95 %: there the bounds are infinite. The
    bootstrap is seeded.

    Raises:
        ValueError: empty or not finite, or a confidence outside (0, 1).
    """
    x = checked(values)
    n = int(x.size)
    median = float(np.median(x))
    least = least_n_for_median(confidence)
    if n < least:
        method = f"none: {n} of {least} values needed"
        return Estimate(median, -math.inf, math.inf, confidence, n, method)
    low, high = _bca_median(x, confidence)
    return Estimate(median, min(low, median), max(high, median), confidence, n, "BCa bootstrap")


def _bca_median(x: Array, confidence: float) -> tuple[float, float]:
    # scipy's BCa gives NaN where leaving one value out never moves the median, so the percentile
    # interval, which it corrects, stands in there.
    leave_one_out = [float(np.median(np.delete(x, i))) for i in range(x.size)]
    method = "BCa" if np.ptp(leave_one_out) > 0 else "percentile"
    found = scipy_stats.bootstrap(
        (x,),
        np.median,
        confidence_level=confidence,
        n_resamples=BOOTSTRAP_RESAMPLES,
        method=method,
        vectorized=True,
        rng=np.random.default_rng(BOOTSTRAP_SEED),
    ).confidence_interval
    return float(found.low), float(found.high)
