"""When an open loop sends. Pure."""

from __future__ import annotations

import numpy as np

from kit.errors import UserError
from kit.load.model import ConstantRate, Poisson, Trace


def planned_sends(arrival: Poisson | ConstantRate | Trace, count: int) -> list[int]:
    """Return the nanosecond after the start at which each of ``count`` requests is sent, in order.

    Raises:
        UserError: a trace has another number of times than there are requests.
    """
    if isinstance(arrival, Trace):
        if len(arrival.times) != count:
            raise UserError(
                f"The trace has {len(arrival.times)} times for {count} requests.",
                "Give one time a request.",
            )
        seconds = np.asarray(arrival.times, dtype=float)
    elif isinstance(arrival, Poisson):
        # Independent exponential gaps are a Poisson process.
        gaps = np.random.default_rng(arrival.seed).exponential(1.0 / arrival.rate, count)
        seconds = np.cumsum(gaps)
    else:
        seconds = np.arange(count) / arrival.rate
    return [int(ns) for ns in np.rint(seconds * 1e9)]
