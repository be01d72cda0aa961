"""Many paced streams against the null server: what is lost, what an event costs, whether memory stays flat.

    python many_streams.py                                   # 1,000 streams for 60 s, 10,000 events a second
    python many_streams.py --streams 200 --interval-ms 16    # 12,500 events a second, few streams
    python many_streams.py --spread                          # the second of the two columns only
    python many_streams.py --workers 2 --tracemalloc

The null server has the last core to itself, the client the others. Every request is a ``/generate`` stream of one
token an event. The server counts what it sent; a token that did not arrive, or arrived twice, ends the program with 1.

Two columns: a closed loop, and as many requests spread evenly in time. Only the second tells what the client adds to
the time to first token: when a thousand streams begin in one millisecond, most of them wait for the others to be read.

Memory: resident memory is sampled every half second, and a straight line is fitted through the samples after the
first round of requests. A level keeps the time and count of every event (16 bytes) and the answer of every request
for its metrics, which must grow; here each result is checked as it ends and what it holds is let go, so that the
slope shows what the client itself would leak. ``--keep`` keeps them, as a measurement does.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import threading
import time
import tracemalloc

import numpy as np
import psutil

from kit.load import (
    ClosedLoop,
    ConstantRate,
    Endpoint,
    LevelResult,
    Request,
    RequestResult,
    run_level,
    summarize,
)
from kit.load.nulldata import NullConfig, NullStats, output_ids
from kit.load.nullserver import null_server
from kit.load.selftest import core_for_the_server, lost

PERIOD_S = 0.5
# The target, where requests are spread.
MOST_ADDED_MS = 1.0


class Memory:
    """Samples of resident memory of this process and its children, in bytes, and what ``tracemalloc`` sees."""

    def __init__(self, skip: int) -> None:
        self.rows: list[tuple[float, int, int]] = []
        self._skip = skip
        self._process = psutil.Process()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._stop.wait(PERIOD_S):
            total = self._process.memory_info().rss
            for child in self._process.children():
                if child.pid != self._skip:
                    total += child.memory_info().rss
            traced = tracemalloc.get_traced_memory()[0] if tracemalloc.is_tracing() else 0
            self.rows.append((time.perf_counter(), total, traced))

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def slopes(self, after_s: float) -> tuple[float, float]:
        """Return bytes a second of resident memory and of traced memory."""
        begin = self.rows[0][0] + after_s
        rows = np.asarray([r for r in self.rows if r[0] >= begin], dtype=float)
        if len(rows) < 4:
            return float("nan"), float("nan")
        rss, traced = (float(np.polyfit(rows[:, 0], rows[:, k], 1)[0]) for k in (1, 2))
        return rss, traced


class Ledger:
    """Checks every result as it ends: each token once, in order, and the answer that the server always gives."""

    def __init__(self, tokens: int, keep: bool) -> None:
        self.seen: set[int] = set()
        self.wrong = 0
        self._tokens = tokens
        self._ids = output_ids(tokens)
        self._keep = keep

    def heard(self, result: RequestResult) -> None:
        """Check one result and, unless it is kept, let go of what it holds."""
        counts = [n for _, n in result.chunks]
        sound = counts == list(range(1, self._tokens + 1)) and result.output_ids == self._ids
        self.wrong += not sound or result.index in self.seen
        self.seen.add(result.index)
        if not self._keep:
            result.chunks, result.output_ids, result.text = (), None, None


def added_ttft_ms(level: LevelResult, server: NullStats) -> float:
    """Return the mean time to first token beyond what the server took, in milliseconds."""
    seen = [r.first_ns - r.send_ns for r in level.results if r.first_ns is not None]
    return statistics.fmean(seen) * 1e-6 - server.mean_ttft_s * 1e3


def measure(args: argparse.Namespace, spread: bool) -> tuple[list[tuple[str, str]], bool]:
    """Run one level; return what it took, as rows to print, and whether all arrived once."""
    rate = args.streams / args.interval_ms * 1e3
    count = max(args.streams, round(rate * args.seconds / args.tokens))
    requests = [
        Request(index=i, prompt_ids=list(range(1, 65)), max_new_tokens=args.tokens)
        for i in range(count)
    ]
    ledger = Ledger(args.tokens, args.keep)
    arrival = ConstantRate(rate / args.tokens) if spread else ClosedLoop(args.streams)
    with core_for_the_server() as cpu:
        config = NullConfig(
            interval_ms=args.interval_ms,
            ttft_ms=args.interval_ms,
            incremental=args.incremental,
            cpu=cpu,
        )
        with null_server(config) as server:
            endpoint = Endpoint(server.url, stream=True)
            run_level(endpoint, requests[:1], ClosedLoop(1), timeout_s=args.seconds + 60)
            server.reset()
            gc.collect()
            if args.tracemalloc:
                tracemalloc.start()
            with Memory(server.process.pid) as memory:
                level = run_level(
                    endpoint,
                    requests,
                    arrival,
                    timeout_s=args.seconds + 60,
                    on_result=ledger.heard,
                    workers=args.workers,
                )
            stats = server.stats()
            tracemalloc.stop()
    metrics, health = summarize(level), level.health
    wall = (level.end_ns - level.start_ns) * 1e-9
    rss, traced = memory.slopes(args.tokens * args.interval_ms * 1e-3 * 1.5)
    faults = lost("level", level, stats)
    if ledger.wrong or ledger.seen != set(range(count)):
        faults.append(f"{ledger.wrong} results wrong, {count - len(ledger.seen)} missing")
    added = added_ttft_ms(level, stats)
    met = ("ok" if added < MOST_ADDED_MS else "ABOVE") if spread else ""
    rows = [
        ("", "spread evenly" if spread else "closed loop"),
        ("streams, requests", f"{args.streams:,}, {count:,}"),
        ("asked", f"{rate:,.0f} events a second for {args.seconds:g} s"),
        ("wall time", f"{wall:.2f} s"),
        ("events read; sent by the server", f"{health.events:,}; {stats.events:,} and a [DONE] a stream"),
        ("events a second", f"{health.events / wall:,.0f}"),
        ("CPU an event", f"{health.cpu_us_per_event:.2f} µs"),
        ("CPU share of the busiest client process", f"{health.cpu_share:.1%}"),
        ("CPU share of the server", f"{stats.cpu_s / wall:.1%}"),
        ("loop lag p99, mean", f"{health.loop_lag_p99_ms:.2f}, {health.loop_lag_mean_ms:.3f} ms"),
        ("schedule delay p99", f"{health.schedule_delay_p99_ms:.3f} ms"),
        ("longest pause of the collector", f"{health.gc_pause_max_ms:.2f} ms"),
        ("throughput off the server's count", f"{metrics.tok_s / stats.tok_s - 1:+.3%}"),
        (f"added time to first token; spread: under {MOST_ADDED_MS:g} ms", f"{added:.3f} ms {met}".strip()),
        ("resident memory: first, last", f"{memory.rows[0][1] / 2**20:.1f}, {memory.rows[-1][1] / 2**20:.1f} MiB"),
        ("resident memory, slope", f"{rss / 1024:+.1f} KiB/s"),
        ("client says it was the bottleneck", health.bound_reason or "no"),
        ("lost or counted twice", "; ".join(faults) or "nothing"),
    ]  # fmt: skip
    if args.tracemalloc:
        rows.append(("tracemalloc, slope", f"{traced / 1024:+.1f} KiB/s"))
    if args.workers > 1:
        rows.append(("processes", str(health.workers)))
    return rows, not faults


def main() -> int:
    """Run the levels and print a table; 1 where a token was lost or counted twice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--interval-ms", type=float, default=100.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--spread", action="store_true")
    parser.add_argument("--incremental", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--tracemalloc", action="store_true")
    args = parser.parse_args()
    columns = []
    sound = True
    for spread in (True,) if args.spread else (False, True):
        rows, whole = measure(args, spread)
        columns.append(rows)
        sound = sound and whole
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} of {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}\n")
    for at, (name, _) in enumerate(columns[0]):
        print("| " + " | ".join([name, *(rows[at][1] for rows in columns)]) + " |")
        if at == 0:
            print("|" + "---|" * (len(columns) + 1))
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
