"""Sum a level up. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from kit.load.model import ClosedLoop, LevelMetrics, LevelResult, RequestResult

NS = 1e-9
PERCENTILES = (50, 90, 95, 99)


def percentiles(values: Sequence[float] | np.ndarray) -> dict[str, float]:
    """Return p50, p90, p95 and p99 by linear interpolation between order statistics (Hyndman and Fan's type 7).

    Empty for no values. With fewer than 100 values p99 lies between the two largest.
    """
    if not len(values):
        return {}
    found = np.percentile(np.asarray(values, dtype=float), PERCENTILES, method="linear")
    return {f"p{p}": float(v) for p, v in zip(PERCENTILES, found, strict=True)}


def full_window(results: Sequence[RequestResult]) -> tuple[int, int] | None:
    """Return the interval in which a closed loop was full; None if there is none.

    It begins when the most requests were in flight for the first time, and ends with the first end after the
    last send: from then on nothing was left to replace what ended.
    """
    edges = sorted(
        [(r.end_ns, -1) for r in results] + [(r.send_ns, 1) for r in results],
    )
    flying = most = 0
    begin = 0
    for at, step in edges:
        flying += step
        if flying > most:
            most, begin = flying, at
    last_send = max((r.send_ns for r in results), default=0)
    end = min((r.end_ns for r in results if r.end_ns >= last_send), default=0)
    return (begin, end) if end > begin else None


def _tokens_within(result: RequestResult, begin: int, end: int) -> float:
    """Return the output tokens of one request that fall into a window, spread evenly where unknown."""
    total = result.completion_tokens or 0
    if len(result.chunks) > 1:
        inside, before = 0, 0
        for at, so_far in result.chunks:
            if begin < at <= end:
                inside += so_far - before
            before = so_far
        return inside
    overlap = min(end, result.end_ns) - max(begin, result.send_ns)
    span = result.end_ns - result.send_ns
    return total * max(0, overlap) / span if span > 0 else 0.0


def token_gaps(results: Sequence[RequestResult]) -> np.ndarray:
    """Return the seconds between output tokens, one value a token after the first chunk.

    A chunk of k tokens brings k gaps of 1/k of the time since the chunk before: a speculating server sends
    several tokens at once, and counting chunks would overstate the gap by the accept length.
    """
    gaps = [np.empty(0)]
    for r in results:
        if len(r.chunks) > 1:
            rows = np.asarray([(at, n) for at, n in r.chunks], dtype=np.int64)
            waited, brought = np.diff(rows[:, 0]) * NS, np.diff(rows[:, 1])
            gaps.append(np.repeat(waited / brought, brought))
    return np.concatenate(gaps)


def _per_token(result: RequestResult) -> float | None:
    """Return the seconds per token of a request after its first chunk, None if there is nothing after it."""
    if result.first_ns is None or not result.chunks:
        return None
    last_at, total = result.chunks[-1]
    # Without running counts the only chunk is the last, and the first token is taken to have come alone.
    first_at, first = result.chunks[0] if len(result.chunks) > 1 else (result.first_ns, 1)
    if total <= first or last_at <= first_at:
        return None
    return (last_at - first_at) * NS / (total - first)


def summarize(level: LevelResult) -> LevelMetrics:
    """Return the metrics of a level; failed requests count as errors and bring no tokens."""
    good = [r for r in level.results if r.error is None]
    wall = (level.end_ns - level.start_ns) * NS
    tokens = sum(r.completion_tokens or 0 for r in good)
    verify = sum(r.spec_verify_ct or 0 for r in good)
    latency = [(r.end_ns - r.send_ns) * NS for r in good]
    window = None
    if level.arrival is None or isinstance(level.arrival, ClosedLoop):
        window = full_window(level.results)
    steady = None
    if window:
        inside = sum(_tokens_within(r, *window) for r in good)
        steady = inside / ((window[1] - window[0]) * NS)
    per_token = [_per_token(r) for r in good]
    cached = [r.cached_tokens for r in good if r.cached_tokens is not None]
    return LevelMetrics(
        tok_s=tokens / wall if wall > 0 else 0.0,
        steady_tok_s=steady,
        effective_concurrency=sum(latency) / wall if wall > 0 else 0.0,
        accept_length=tokens / verify if verify else None,
        latency_s=percentiles(latency),
        ttft_s=percentiles([(r.first_ns - r.send_ns) * NS for r in good if r.first_ns is not None]),
        tpot_s=percentiles([t for t in per_token if t is not None]),
        itl_s=percentiles(token_gaps(good)),
        cached_tokens=sum(cached) if cached else None,
        errors=len(level.results) - len(good),
        steady_s=(window[1] - window[0]) * NS if window else None,
        error_kinds=dict(Counter(r.error.kind for r in level.results if r.error is not None)),
    )
