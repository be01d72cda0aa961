"""Statistics of nested measurements (sweeps within launches), ratios, equivalence and planning.

Pure: numpy and scipy only, no I/O, nothing else of the kit. Throughput is positive and its noise
relative, so nested data are worked on as logarithms: intervals are those of ratios, and scaling
all data scales them. Every function raises ValueError for data that are empty, NaN, infinite or
(where a logarithm is taken) not positive. ``docs/method.md`` says why each method was chosen and
prints the simulation behind it.
"""

from __future__ import annotations

from kit.stats.decide import (
    MAX_TOLERANCE,
    MIN_TOLERANCE,
    Call,
    Where,
    calls,
    difference_p_value,
    enough,
    equivalence,
    holm,
    tolerance,
    tolerance_for,
    tost_p_values,
)
from kit.stats.estimate import CONFIDENCE, Estimate, geometric_mean, mean_ci, median_ci
from kit.stats.factors import (
    PRODUCT_SLACK,
    Contribution,
    Factors,
    decompose,
    product_error,
)
from kit.stats.nested import (
    Groups,
    Noise,
    Reference,
    Statistic,
    combined_cv,
    hierarchical_ci,
    noise_of,
    pooled_cv,
    ratio_ci,
    ratio_to_reference,
    relative_spread,
    variance_components,
)
from kit.stats.planning import Plan, expected_half_width, plan_repetitions
from kit.stats.robust import outliers

__all__ = [
    "CONFIDENCE",
    "MAX_TOLERANCE",
    "MIN_TOLERANCE",
    "PRODUCT_SLACK",
    "Call",
    "Contribution",
    "Estimate",
    "Factors",
    "Groups",
    "Noise",
    "Plan",
    "Reference",
    "Statistic",
    "Where",
    "calls",
    "combined_cv",
    "decompose",
    "difference_p_value",
    "enough",
    "equivalence",
    "expected_half_width",
    "geometric_mean",
    "hierarchical_ci",
    "holm",
    "mean_ci",
    "median_ci",
    "noise_of",
    "outliers",
    "plan_repetitions",
    "pooled_cv",
    "product_error",
    "ratio_ci",
    "ratio_to_reference",
    "relative_spread",
    "tolerance",
    "tolerance_for",
    "tost_p_values",
    "variance_components",
]
