"""Whether two clients that measured one server in turns agree. Pure."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Literal

from kit.stats.estimate import median_ci

WITHIN = 0.02
Row = dict[str, float]
Verdict = Literal["agree", "differ", "not decided"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of both clients.

    Args:
        key: In what a client tells of a level.
        title: With its unit.
        unit: Factor from what is told to the unit.
        judged: Part of the verdict: it has one definition for both. The others are what each client prints.
    """

    key: str
    title: str
    unit: float
    judged: bool


FIGURES = (
    Figure("window_tok_s", "output tok/s, first send to last end", 1.0, True),
    Figure("ttft_wire_s", "mean TTFT at the socket, ms", 1e3, True),
    Figure("itl_s", "mean ITL a token, ms", 1e3, True),
    Figure("tok_s", "output tok/s as printed", 1.0, False),
    Figure("ttft_s", "mean TTFT as printed, ms", 1e3, False),
    Figure("latency_s", "mean latency as printed, ms", 1e3, False),
)
DEFINITIONS = """\
Throughput: output tokens by the server's count ÷ time from the first send to the last end.
TTFT: from just before the request is written to its socket to the arrival of the first bytes with an event.
ITL: an event of k tokens is k gaps of 1/k of the wait for it; the mean over all tokens after the first event.
As printed: bench_serving's window also holds its task making and a closing request for the server's state, its TTFT
also opening a connection and, at the end, waiting for its event loop and parsing."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A figure compared: medians over the rounds, and the median of the ratios within a round.

    Attributes:
        ours: This client's median, in the figure's unit.
        theirs: bench_serving's.
        difference: Median of ours ÷ theirs within a round, minus 1.
        low: Of its 95 % interval; minus infinity with too few rounds for one.
        high: The upper end.
    """

    figure: Figure
    ours: float
    theirs: float
    difference: float
    low: float
    high: float

    @property
    def verdict(self) -> Verdict:
        """Agreement within 2 % is shown, refuted, or not decided by these rounds."""
        if self.low >= -WITHIN and self.high <= WITHIN:
            return "agree"
        return "differ" if self.low > WITHIN or self.high < -WITHIN else "not decided"

    @property
    def words(self) -> str:
        """The difference with its interval."""
        if math.isinf(self.low):
            return f"{self.difference:+.2%} (no interval: too few rounds)"
        return f"{self.difference:+.2%} ({self.low:+.2%} to {self.high:+.2%})"


def compare(figure: Figure, ours: list[Row], theirs: list[Row]) -> Comparison | None:
    """Compare one figure over rounds; None where a client did not tell it.

    Args:
        figure: Which.
        ours: What this client told, a row a round.
        theirs: The same rounds of bench_serving.
    """
    pairs = [
        (a[figure.key], b[figure.key])
        for a, b in zip(ours, theirs, strict=True)
        if figure.key in a and figure.key in b
    ]
    if not pairs or any(not (x > 0 and y > 0) for x, y in pairs):
        return None
    found = median_ci([x / y for x, y in pairs])
    return Comparison(
        figure,
        statistics.median(x for x, _ in pairs) * figure.unit,
        statistics.median(y for _, y in pairs) * figure.unit,
        found.value - 1,
        found.low - 1,
        found.high - 1,
    )


def explanation(theirs: list[Row]) -> str:
    """Say what of bench_serving's figures is not the server's; empty where it is not known."""
    rows = [r for r in theirs if "before_s" in r]
    if not rows:
        return ""
    before = statistics.median(r["before_s"] for r in rows) * 1e3
    behind = statistics.median(r["behind_s"] for r in rows) * 1e3
    idle = statistics.median(r["before_s"] / r["latency_s"] for r in rows)
    return (
        f"of bench_serving's printed TTFT {before:.2f} ms pass before the request is written and {behind:.2f} ms"
        f" after the first event arrived; for {idle:.1%} of a request's time the server has not heard of it,"
        " which its throughput lacks"
    )


def cache_note(ours: list[Row]) -> str:
    """Say that the server's prefix cache was warm; empty where it was not, or nobody knows.

    Both clients send the same prompts, so whichever comes second in a round finds what the first left there.
    """
    cached = [r["cached_tokens"] for r in ours if r.get("cached_tokens")]
    if not cached:
        return ""
    return (
        f"In {len(cached)} of {len(ours)} rounds the server took prompt tokens from its cache (up to"
        f" {max(cached):.0f}), which favours the client that comes second. Start it with --disable-radix-cache."
    )


def verdict_line(found: list[Comparison | None], theirs: list[Row]) -> str:
    """Return the verdict of a cross-check in one line, without its end."""
    judged = [(f, c) for f, c in zip(FIGURES, found, strict=True) if f.judged]
    told = "; ".join(f"{f.title}: {c.words if c else 'not measured'}" for f, c in judged)
    verdicts = {c.verdict if c else "not decided" for _, c in judged}
    if verdicts == {"agree"}:
        line = f"agree within {WITHIN:.0%}: {told}"
    elif "differ" in verdicts:
        line = f"differ by more than {WITHIN:.0%}: {told}"
    else:
        line = f"not decided by {len(theirs)} rounds: {told}"
    why = explanation(theirs)
    return f"{line}; {why}" if why else line
