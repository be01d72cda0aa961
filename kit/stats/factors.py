"""Throughput taken apart: effective concurrency × accept length ÷ step time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kit.stats.estimate import CONFIDENCE, Estimate
from kit.stats.nested import ratio_ci, ratio_to_reference

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FactorName = Literal["effective concurrency", "accept length", "step time"]
# The three factors must give the throughput back within this, or the decomposition is not to be
# trusted.
PRODUCT_SLACK = 0.01


@dataclass(frozen=True)
class Factors:
    """The three factors of one pass of a level.

    Attributes:
        effective_concurrency: Mean requests in flight.
        accept_length: Tokens per step; 1 without speculation.
        step_time_s: Seconds of a step of one request.
    """

    effective_concurrency: float
    accept_length: float
    step_time_s: float

    @property
    def throughput(self) -> float:
        """Output tokens per second by the product of the factors."""
        return self.effective_concurrency * self.accept_length / self.step_time_s


@dataclass(frozen=True)
class Contribution:
    """What one factor does to the ratio of two throughputs.

    Attributes:
        factor: Its name.
        ratio: The factor's own ratio: step time 1.07 means steps are slower.
        effect: The same as seen in throughput: step time 1.07 has the effect 1/1.07.
        log_effect: Logarithm of ``effect.value``; the three add up to that of the product.
        share: ``log_effect`` over the sum of the three; None where they cancel.
    """

    factor: FactorName
    ratio: Estimate
    effect: Estimate
    log_effect: float
    share: float | None


_GETTERS: list[tuple[FactorName, Callable[[Factors], float], int]] = [
    ("effective concurrency", lambda f: f.effective_concurrency, 1),
    ("accept length", lambda f: f.accept_length, 1),
    ("step time", lambda f: f.step_time_s, -1),
]


def product_error(factors: Factors, throughput: float) -> float:
    """Return by how much, relatively, the product of the factors misses the measured throughput.

    Raises:
        ValueError: a value that is not positive and finite.
    """
    values = (factors.effective_concurrency, factors.accept_length, factors.step_time_s, throughput)
    if not all(v > 0 and math.isfinite(v) for v in values):
        raise ValueError("factors and throughput must be positive and finite")
    return factors.throughput / throughput - 1


def _inverse(estimate: Estimate) -> Estimate:
    return Estimate(
        1 / estimate.value,
        1 / estimate.high,
        1 / estimate.low if estimate.low else math.inf,
        estimate.confidence,
        estimate.n,
        estimate.method,
        estimate.log_error,
        estimate.df,
    )


def decompose(
    run: Sequence[Sequence[Factors]],
    reference: Factors | Sequence[Sequence[Factors]],
    confidence: float = CONFIDENCE,
) -> list[Contribution]:
    """Return what each factor contributes to the ratio of the run's throughput to the reference's.

    Args:
        run: Launches of passes.
        reference: The same of another run, or three numbers taken as exact.
        confidence: Two-sided level of each factor's interval.

    Raises:
        ValueError: no data, or a factor that is not positive and finite.
    """

    def groups(
        data: Sequence[Sequence[Factors]], get: Callable[[Factors], float]
    ) -> list[list[float]]:
        return [[get(f) for f in launch] for launch in data]

    ratios = [
        ratio_to_reference(groups(run, get), get(reference), confidence=confidence)
        if isinstance(reference, Factors)
        else ratio_ci(groups(run, get), groups(reference, get), confidence)
        for _, get, _ in _GETTERS
    ]
    effects = [
        r if sign > 0 else _inverse(r) for r, (_, _, sign) in zip(ratios, _GETTERS, strict=True)
    ]
    logs = [math.log(e.value) for e in effects]
    total = math.fsum(logs)
    return [
        Contribution(name, ratio, effect, log, log / total if abs(total) > 1e-12 else None)
        for (name, _, _), ratio, effect, log in zip(_GETTERS, ratios, effects, logs, strict=True)
    ]
