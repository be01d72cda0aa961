"""Sum a level up. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kit.load.model import LevelMetrics, LevelResult, RequestResult

NS = 1e-9
PERCENTILES = (50, 90, 95, 99)


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return p50, p90, p95 and p99 by linear interpolation between order statistics; empty for no values."""
    if not values:
        return {}
    found = np.percentile(np.asarray(values, dtype=float), PERCENTILES, method="linear")
    return {f"p{p}": float(v) for p, v in zip(PERCENTILES, found, strict=True)}


def full_window(results: Sequence[RequestResult]) -> tuple[int, int] | None:
    """Return the longest interval in which the most requests were in flight, None if it is empty."""
    edges = sorted(
        [(r.send_ns, 1) for r in results] + [(r.end_ns, -1) for r in results],
        # A slot that is handed on counts as never empty: the next send comes before the end at equal times.
        key=lambda e: (e[0], -e[1]),
    )
    flying = most = 0
    for _, step in edges:
        flying += step
        most = max(most, flying)
    # Replacement takes a moment: one missing request does not end the window.
    least = max(1, most - 1)
    flying = 0
    begin: int | None = None
    best: tuple[int, int] | None = None
    for at, step in edges:
        flying += step
        if flying >= least and begin is None and flying == most:
            begin = at
        elif flying < least and begin is not None:
            if best is None or at - begin > best[1] - best[0]:
                best = (begin, at)
            begin = None
    return best if best and best[1] > best[0] else None


def _tokens_within(result: RequestResult, begin: int, end: int) -> float:
    """Return the output tokens of one request that fall into a window, spread evenly where unknown."""
    total = result.completion_tokens or 0
    if len(result.chunks) > 1:
        inside, before = 0, 0
        for at, so_far in result.chunks:
            if begin <= at < end:
                inside += so_far - before
            before = so_far
        return inside
    first = result.send_ns
    overlap = min(end, result.end_ns) - max(begin, first)
    span = result.end_ns - first
    return total * max(0, overlap) / span if span > 0 else 0.0


def summarize(level: LevelResult) -> LevelMetrics:
    """Return the metrics of a level; failed requests count as errors and bring no tokens."""
    good = [r for r in level.results if r.error is None]
    wall = (level.end_ns - level.start_ns) * NS
    tokens = sum(r.completion_tokens or 0 for r in good)
    verify = sum(r.spec_verify_ct or 0 for r in good)
    latency = [(r.end_ns - r.send_ns) * NS for r in good]
    ttft, tpot, itl = [], [], []
    for r in good:
        if r.first_ns is None or not r.chunks:
            continue
        ttft.append((r.first_ns - r.send_ns) * NS)
        count = r.completion_tokens or 0
        if count > 1:
            tpot.append((r.chunks[-1][0] - r.first_ns) * NS / (count - 1))
        for (t0, n0), (t1, n1) in zip(r.chunks, r.chunks[1:], strict=False):
            # A speculative chunk carries several tokens: its gap is shared by them.
            if n1 > n0:
                itl += [(t1 - t0) * NS / (n1 - n0)] * (n1 - n0)
    window = full_window(good)
    steady = None
    if window:
        inside = sum(_tokens_within(r, *window) for r in good)
        steady = inside / ((window[1] - window[0]) * NS)
    return LevelMetrics(
        tok_s=tokens / wall if wall > 0 else 0.0,
        steady_tok_s=steady,
        effective_concurrency=sum(latency) / wall if wall > 0 else 0.0,
        accept_length=tokens / verify if verify else None,
        latency_s=percentiles(latency),
        ttft_s=percentiles(ttft),
        tpot_s=percentiles(tpot),
        itl_s=percentiles(itl),
        cached_tokens=sum(r.cached_tokens or 0 for r in good),
        errors=len(level.results) - len(good),
    )
