"""When requests are sent: arrival processes by name, and the schedule of an open loop."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kit.errors import UserError
from kit.load.model import Arrival, ClosedLoop, ConstantRate, Poisson, Trace


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


# Enough for a day at 10 a second; a larger file is not a trace.
TRACE_BYTES = 16 << 20


def read_trace(path: Path) -> Trace:
    """Read a trace: seconds after the start, one number a line; blank lines and what follows a ``#`` are skipped.

    Raises:
        UserError: no such file, too large, not numbers, not in order, or empty.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(TRACE_BYTES + 1)
    except OSError as error:
        raise UserError(f"The trace {path} cannot be read: {error.strerror}.") from None
    if len(raw) > TRACE_BYTES:
        raise UserError(f"The trace {path} is larger than {TRACE_BYTES >> 20} MiB.", "Shorten it.")
    times: list[float] = []
    for number, line in enumerate(raw.decode("utf-8", "replace").splitlines(), 1):
        told = line.partition("#")[0].strip()
        if told:
            try:
                times.append(float(told))
            except ValueError:
                raise UserError(
                    f"Line {number} of {path} is not a number: {told[:40]!r}.",
                    "A trace has the seconds of one send a line.",
                ) from None
    if not times:
        raise UserError(
            f"The trace {path} has no times.", "A trace has the seconds of one send a line."
        )
    return Trace(tuple(times))


def parse_arrival(text: str) -> Arrival:
    """Return the arrival that ``text`` names: ``closed:C``, ``poisson:RATE[:SEED]``, ``constant:RATE``, ``trace:FILE``.

    Raises:
        UserError: it names none, or the trace cannot be used.
    """
    kind, _, value = text.partition(":")
    try:
        if kind == "closed":
            return ClosedLoop(int(value))
        if kind == "constant":
            return ConstantRate(float(value))
        if kind == "poisson":
            rate, _, seed = value.partition(":")
            return Poisson(float(rate), int(seed or 0))
    except ValueError:
        raise UserError(
            f"{text!r} has no number where one is needed.",
            "Write closed:8, poisson:2.5, poisson:2.5:SEED or constant:4.",
        ) from None
    if kind == "trace" and value:
        return read_trace(Path(value))
    raise UserError(
        f"{text!r} is not an arrival process.",
        "Write closed:8, poisson:2.5, constant:4 or trace:FILE.",
    )


def arrival_text(arrival: Arrival) -> str:
    """Return an arrival as :func:`parse_arrival` reads it; a trace by its number of times."""
    if isinstance(arrival, ClosedLoop):
        return f"closed:{arrival.concurrency}"
    if isinstance(arrival, ConstantRate):
        return f"constant:{arrival.rate:g}"
    if isinstance(arrival, Poisson):
        return f"poisson:{arrival.rate:g}:{arrival.seed}"
    return f"trace of {len(arrival.times)} times"
