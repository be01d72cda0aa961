"""Many streams at once, in one process and in several, against the null server: each token exactly once."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from kit.load import ClosedLoop, Endpoint, Request, RequestResult, run_level
from kit.load.nulldata import NullConfig, output_ids
from kit.load.nullserver import null_server

TOKENS = 60
PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks/client/many_streams.py"


@pytest.mark.parametrize("workers", [1, 3])
def test_200_streams_bring_each_token_once(workers: int) -> None:
    requests = [
        Request(index=7 * i, prompt_ids=[1, 2, 3], max_new_tokens=TOKENS) for i in range(600)
    ]
    heard: list[int] = []

    def check(result: RequestResult) -> None:
        heard.append(result.index)
        assert [n for _, n in result.chunks] == list(range(1, TOKENS + 1))
        assert result.output_ids == output_ids(TOKENS)

    with null_server(NullConfig(interval_ms=20, ttft_ms=20)) as server:
        level = run_level(
            Endpoint(server.url, stream=True), requests, ClosedLoop(200), timeout_s=120,
            on_result=check, workers=workers,
        )  # fmt: skip
        stats = server.stats()
    assert level.health.workers == workers
    assert sorted(heard) == [r.index for r in level.results] == [r.index for r in requests]
    assert stats.requests == stats.completed == 600
    assert stats.tokens == stats.events == 600 * TOKENS
    assert level.health.events == stats.events + 600  # and a [DONE] each
    # Merged and sorted by time, never more in flight than asked.
    edges = sorted(
        [(r.end_ns, -1) for r in level.results] + [(r.send_ns, 1) for r in level.results]
    )
    flying = most = 0
    for _, step in edges:
        flying += step
        most = max(most, flying)
    assert most <= 200


def test_memory_does_not_grow_with_the_events_that_were_read() -> None:
    """What a level holds after many requests whose results were let go is what it holds after few."""
    held: list[int] = []

    def let_go(result: RequestResult) -> None:
        result.chunks, result.output_ids, result.text = (), None, None
        if result.index % 200 == 199:
            held.append(tracemalloc.get_traced_memory()[0])

    requests = [Request(index=i, prompt_ids=[1], max_new_tokens=40) for i in range(1000)]
    with null_server(NullConfig(interval_ms=0, ttft_ms=0)) as server:
        tracemalloc.start()
        try:
            run_level(
                Endpoint(server.url, stream=True), requests, ClosedLoop(20), timeout_s=120, on_result=let_go
            )  # fmt: skip
        finally:
            tracemalloc.stop()
    # 600 requests and 24,000 events later: their bare results (under 1 KB each) and nothing else. One event of
    # each kept would be more than 2 KB a request.
    assert len(held) == 5
    assert held[-1] - held[1] < 600 * 1024


def test_the_benchmark_has_a_column_for_spread_requests_with_the_target_of_ttft() -> None:
    args = ["--streams", "10", "--interval-ms", "20", "--seconds", "1", "--tokens", "20"]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *args],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    table = [line.split("|")[1:-1] for line in done.stdout.splitlines() if line.startswith("|")]
    rows = {name.strip(): [cell.strip() for cell in cells] for name, *cells in table}
    assert rows[""] == ["closed loop", "spread evenly"]
    closed, spread = rows["added time to first token; spread: under 1 ms"]
    value, unit, verdict = spread.split()
    assert (unit, verdict) == ("ms", "ok" if float(value) < 1 else "ABOVE")
    assert closed.endswith(" ms")
    assert rows["lost or counted twice"] == ["nothing", "nothing"]
