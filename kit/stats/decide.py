"""From intervals to decisions: equivalence, difference, several levels at once, tolerances."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Literal, TypeVar

from kit.stats.estimate import Estimate, t_tail

Where = Literal["inside", "below", "above", "straddles_low", "straddles_high", "straddles_both"]
Call = Literal["same", "lower", "higher", "undecided"]
Key = TypeVar("Key", bound=Hashable)
MIN_TOLERANCE = 0.05
MAX_TOLERANCE = 0.10
ALPHA = 0.05
STANDARD_ERRORS = 4.0


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError("delta must lie between 0 and 1")


def equivalence(estimate: Estimate, delta: float) -> Where:
    """Return where the interval of a ratio lies against the band [1 - delta, 1 + delta].

    This is two one-sided tests (TOST, Schuirmann 1987): an interval of confidence 1 - 2a inside
    the band rejects, at level a each, that the ratio lies beyond either bound. The kit's 95 %
    intervals make that 2.5 %, so that the interval which is printed is the one that decides; 5 %
    would be the 90 % interval.

    Raises:
        ValueError: ``delta`` outside (0, 1).
    """
    _check_delta(delta)
    least, most = 1 - delta, 1 + delta
    if estimate.high < least:
        return "below"
    if estimate.low > most:
        return "above"
    under, over = estimate.low < least, estimate.high > most
    if under and over:
        return "straddles_both"
    if under:
        return "straddles_low"
    return "straddles_high" if over else "inside"


def _p_above(estimate: Estimate, bound: float) -> float:
    """Return the p value of the hypothesis that the ratio is at most ``bound``."""
    distance = math.log(estimate.value) - math.log(bound)
    if not math.isfinite(estimate.log_error):
        return 1.0
    if estimate.log_error == 0:
        return 0.0 if distance > 0 else 1.0
    return t_tail(distance / estimate.log_error, estimate.df)


def tost_p_values(estimate: Estimate, delta: float) -> tuple[float, float]:
    """Return the p values of two one-sided tests: that the ratio is too low, that it is too high.

    Equivalence at level a is the larger one below a; that agrees with :func:`equivalence` on the
    interval of confidence 1 - 2a. Without an interval both are 1.

    Raises:
        ValueError: ``delta`` outside (0, 1).
    """
    _check_delta(delta)
    p_low = _p_above(estimate, 1 - delta)
    if not math.isfinite(estimate.log_error):
        return 1.0, 1.0
    if estimate.log_error == 0:
        return p_low, 0.0 if estimate.value < 1 + delta else 1.0
    return p_low, 1 - _p_above(estimate, 1 + delta)


def difference_p_value(estimate: Estimate, null: float = 1.0) -> float:
    """Return the two-sided p value of a ratio of ``null``; 1 without an interval."""
    if not math.isfinite(estimate.log_error):
        return 1.0
    distance = abs(math.log(estimate.value) - math.log(null))
    if estimate.log_error == 0:
        return 0.0 if distance > 0 else 1.0
    return min(1.0, 2 * t_tail(distance / estimate.log_error, estimate.df))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values adjusted for their number (Holm 1979), in the given order.

    Rejecting those at or below a keeps the chance of any false rejection at a, however they
    depend on each other.

    Raises:
        ValueError: a value outside [0, 1].
    """
    if not all(0 <= p <= 1 for p in p_values):
        raise ValueError("p values must lie between 0 and 1")
    adjusted = [0.0] * len(p_values)
    worst = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = worst
    return adjusted


def calls(
    ratios: Mapping[Key, Estimate],
    tolerances: Mapping[Key, float],
    alpha: float = ALPHA,
    material: float = MIN_TOLERANCE,
) -> dict[Key, Call]:
    """Call each level of a run against its reference, all levels together.

    lower or higher: the ratio differs from 1 by Holm's test over all levels at ``alpha``, and the
    estimate is off by more than ``material``. same: otherwise, if the interval lies inside the
    band. undecided: anything else. However many levels there are, an unchanged system gets any
    ``lower`` or ``higher`` in at most ``alpha`` of runs.

    Args:
        ratios: The ratio of each level, 1 meaning unchanged.
        tolerances: The half-width of each level's band.
        alpha: Chance of any false alarm in a run.
        material: Least difference that is called one.

    Raises:
        ValueError: a tolerance or ``material`` outside (0, 1).
    """
    _check_delta(material)
    keys = list(ratios)
    adjusted = holm([difference_p_value(ratios[k]) for k in keys])
    return {
        k: _call(ratios[k], tolerances[k], material, p <= alpha)
        for k, p in zip(keys, adjusted, strict=True)
    }


def _call(ratio: Estimate, delta: float, material: float, differs: bool) -> Call:
    if differs and ratio.value < 1 - material:
        return "lower"
    if differs and ratio.value > 1 + material:
        return "higher"
    return "same" if equivalence(ratio, delta) == "inside" else "undecided"


def tolerance(
    reference_error: float,
    run_error: float,
    floor: float = MIN_TOLERANCE,
    ceiling: float = MAX_TOLERANCE,
) -> float:
    """Return the half-width of the band from the noise of both sides, between floor and ceiling.

    Four standard errors of the ratio: about two for the interval's own half-width and two for where
    an unchanged system's estimate falls, so that one level of it is called ``same`` in some 95 % of
    runs however large the noise, up to the ceiling.

    Args:
        reference_error: Standard error of the reference, relative.
        run_error: Standard error of the run's mean, relative.
        floor: Least tolerance: differences below are of no interest.
        ceiling: Greatest tolerance, or noise could buy any verdict.

    Raises:
        ValueError: a negative or not finite error, or a floor outside (0, 1).
    """
    if not (0 <= reference_error < math.inf and 0 <= run_error < math.inf):
        raise ValueError("errors must be finite and not negative")
    if not 0 < floor < 1:
        raise ValueError("the floor must lie between 0 and 1")
    wanted = STANDARD_ERRORS * math.hypot(reference_error, run_error)
    return min(max(floor, ceiling), max(floor, wanted))


def tolerance_for(
    ratio: Estimate, floor: float = MIN_TOLERANCE, ceiling: float = MAX_TOLERANCE
) -> float:
    """Return :func:`tolerance` from the error of the ratio itself, which both noises are part of.

    With noise shared over scenarios this error is known much better than the spread of a few
    launches. A ratio without an interval has the floor; nothing can lie inside it anyway.
    """
    error = ratio.log_error
    return tolerance(error if math.isfinite(error) else 0.0, 0.0, floor, ceiling)


def enough(estimate: Estimate, tolerance: float) -> bool:
    """Return whether repeating further is needless: the half-width is under half the tolerance."""
    return estimate.relative_half_width < tolerance / 2
