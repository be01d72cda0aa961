"""Flags for values far from the rest. They are shown; nothing is ever dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kit.stats.estimate import checked

if TYPE_CHECKING:
    from collections.abc import Sequence

# Iglewicz and Hoaglin (1993): a modified z-score above 3.5 is a potential outlier.
THRESHOLD = 3.5
# Below this many values the spread of the rest says nothing about one of them.
LEAST_N = 4


def outliers(values: Sequence[float], threshold: float = THRESHOLD) -> list[bool]:
    """Return for each value, in the given order, whether its modified z-score is above
    ``threshold``.

    The score is 0.6745·|x − median| ÷ MAD. Where more than half the values are equal (MAD = 0)
    the mean absolute deviation stands in, as |x − median| ÷ (1.2533·mean AD). Fewer than four
    values have no flags.

    Raises:
        ValueError: empty or not finite, or a threshold that is not positive.
    """
    checked(values)
    if not threshold > 0:
        raise ValueError("the threshold must be positive")
    x = np.asarray(values, dtype=np.float64)
    if x.size < LEAST_N:
        return [False] * int(x.size)
    distance = np.abs(x - np.median(x))
    mad = float(np.median(distance))
    scale = mad / 0.6745 if mad > 0 else 1.253314 * float(distance.mean())
    if scale == 0:
        return [False] * int(x.size)
    return [bool(flag) for flag in distance > threshold * scale]
