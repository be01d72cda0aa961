"""The null server's own count against what the client saw, in every form it speaks; workers; the self-test."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import UserError
from kit.load import (
    ClosedLoop,
    ConstantRate,
    Endpoint,
    LevelResult,
    Request,
    run_level,
    selftest,
    summarize,
    workers_for,
)
from kit.load import workers as workers_module
from kit.load.model import Arrival, ChunkLog, RequestError, RequestResult
from kit.load.nulldata import NullConfig, NullStats, output_ids, render, steps_of
from kit.load.nullserver import null_server
from kit.load.selftest import Check, SelfTestReport, lost, self_test
from kit.load.workers import result_from_json, result_to_json


def requests(count: int, tokens: int) -> list[Request]:
    return [
        Request(index=i, prompt_ids=[1, 2, 3], text="a b c", max_new_tokens=tokens)
        for i in range(count)
    ]


def both(
    config: NullConfig,
    point: dict[str, Any],
    count: int,
    tokens: int,
    arrival: Arrival,
    **more: Any,
) -> tuple[LevelResult, NullStats]:
    with null_server(config) as server:
        level = run_level(
            Endpoint(server.url, **point), requests(count, tokens), arrival, timeout_s=60, **more
        )
        return level, server.stats()


@given(st.integers(1, 300), st.integers(1, 9))
def test_steps_end_at_the_tokens_and_begin_with_one(tokens: int, each: int) -> None:
    steps = steps_of(tokens, each)
    assert steps[0] == 1
    assert steps[-1] == tokens
    assert all(0 < b - a <= each for a, b in pairwise(steps))
    assert len(render(NullConfig(tokens_per_event=each), "generate", 3, tokens, True)) == len(steps)


@pytest.mark.parametrize("api", ["generate", "completions", "chat"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("incremental", [True, False])
def test_both_sides_count_the_same(api: str, stream: bool, incremental: bool) -> None:
    config = NullConfig(interval_ms=1, ttft_ms=2, tokens_per_event=3, incremental=incremental)
    level, stats = both(config, {"api": api, "stream": stream}, 12, 20, ClosedLoop(4))
    assert [r.error for r in level.results] == [None] * 12
    assert stats.requests == stats.completed == 12
    assert stats.tokens == sum(r.completion_tokens or 0 for r in level.results) == 240
    assert stats.dropped == 0
    steps = steps_of(20, 3)
    for r in level.results:
        assert [n for _, n in r.chunks] == (steps if stream else [])
        if api == "generate":
            assert r.output_ids == output_ids(20)
            assert r.spec_verify_ct == len(steps) - 1
        assert r.text == " word" * 20
        assert r.prompt_tokens == (3 if api != "chat" else 1)
    if stream:
        assert stats.events == 12 * len(steps)
        # One [DONE], and the closing usage of the OpenAI forms.
        assert level.health.events == stats.events + 12 * (1 if api == "generate" else 2)
    # The server cannot have been faster than the client saw it, nor answered before its time.
    metrics = summarize(level)
    assert metrics.tok_s <= stats.tok_s
    fewest = 2 + 1 * (len(steps) - 1)
    assert min(r.end_ns - r.send_ns for r in level.results) >= fewest * 1_000_000


def test_lockstep_and_unpaced_lose_nothing() -> None:
    for config in (
        NullConfig(interval_ms=5, ttft_ms=1, lockstep=True),
        NullConfig(interval_ms=0, ttft_ms=0),
    ):
        level, stats = both(config, {"stream": True}, 30, 40, ClosedLoop(10))
        assert [r.error for r in level.results] == [None] * 30
        assert stats.tokens == 1200 == sum(r.completion_tokens or 0 for r in level.results)
        assert all(len(r.chunks) == 40 for r in level.results)


def test_an_open_loop_against_a_slow_server_piles_up() -> None:
    level, stats = both(NullConfig(interval_ms=0, ttft_ms=300), {}, 20, 2, ConstantRate(400))
    assert stats.completed == 20
    assert summarize(level).effective_concurrency > 10


def test_dropped_streams_are_counted_as_dropped() -> None:
    with null_server(NullConfig(interval_ms=1000, ttft_ms=1)) as server:
        level = run_level(
            Endpoint(server.url, stream=True), requests(3, 50), ClosedLoop(3), timeout_s=0.3
        )
        assert [r.error.kind for r in level.results if r.error] == ["timeout"] * 3
        for _ in range(100):
            if server.stats().dropped == 3:
                break
        assert server.stats().dropped == 3
        server.reset()
        assert server.stats().requests == 0


# -- worker processes


@pytest.mark.parametrize("arrival", [ClosedLoop(7), ConstantRate(300)])
def test_workers_act_as_one_and_lose_nothing(arrival: Arrival) -> None:
    heard: list[int] = []
    level, stats = both(
        NullConfig(interval_ms=2, ttft_ms=2), {"stream": True}, 40, 10, arrival,
        workers=3, on_result=lambda r: heard.append(r.index),
    )  # fmt: skip
    assert [r.error for r in level.results] == [None] * 40
    assert [r.index for r in level.results] == list(range(40)) == sorted(heard)
    assert stats.requests == stats.completed == 40
    assert all([n for _, n in r.chunks] == list(range(1, 11)) for r in level.results)
    assert level.health.workers == 3
    assert level.health.events == 40 * 11
    # One clock and one start for all of them.
    assert level.start_ns >= 0
    if isinstance(arrival, ClosedLoop):
        flying = most = 0
        for _, step in sorted(
            [(r.end_ns, -1) for r in level.results] + [(r.send_ns, 1) for r in level.results]
        ):
            flying += step
            most = max(most, flying)
        assert most == 7


def test_a_worker_that_dies_loses_its_own_requests_only(monkeypatch: pytest.MonkeyPatch) -> None:
    crew: list[Any] = []
    make = workers_module._Worker.__init__

    def remember(self: Any, *args: Any) -> None:
        make(self, *args)
        crew.append(self)

    monkeypatch.setattr(workers_module._Worker, "__init__", remember)
    killed = False

    def kill(_: RequestResult) -> None:
        nonlocal killed
        if not killed:
            killed = True
            os.kill(crew[0].process.pid, signal.SIGKILL)

    level, _ = both(
        NullConfig(interval_ms=10, ttft_ms=10),
        {"stream": True},
        12,
        10,
        ClosedLoop(4),
        workers=2,
        on_result=kill,
    )
    assert [r.index for r in level.results] == list(range(12))
    lost = [r for r in level.results if r.error]
    assert 1 <= len(lost) <= 3
    assert all("process died" in r.error.message for r in lost if r.error)


def test_a_worker_passes_the_users_error_on() -> None:
    with pytest.raises(UserError, match="chat API"):
        run_level(
            Endpoint("http://127.0.0.1:1", "chat"), [Request(i, 1, prompt_ids=[1]) for i in range(4)],
            ClosedLoop(2), timeout_s=1, workers=2,
        )  # fmt: skip


def test_results_survive_the_way_between_processes() -> None:
    found = RequestResult(
        3, 10, 90, 20, ChunkLog([(20, 1), (30, 4)]), 2, 4, 0, 1, [1, 2, 3, 4], "é", "length"
    )
    found.planned_ns = 9
    bad = RequestResult(4, 1, 2, error=RequestError("reset", "m"))
    for each in (found, bad):
        assert result_from_json(result_to_json(each)) == each


@pytest.mark.parametrize(
    ("rate", "cores", "count"),
    [(775, 2, 1), (20_000, 8, 1), (20_001, 8, 2), (10**6, 8, 7), (10**6, 1, 1)],
)
def test_workers_for_a_rate(rate: float, cores: int, count: int) -> None:
    assert workers_for(rate, cores) == count


# -- the self-test


def test_the_self_test_measures_both_sides() -> None:
    said: list[str] = []
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    report = self_test(seconds=0.6, factor=2, progress=said.append)
    assert len(said) == 3
    assert report.faults == ()
    assert report.cpu_us_per_event > 0
    assert report.headroom == pytest.approx(0.5e6 / report.cpu_us_per_event / 775)
    text = report.text()
    for check in report.checks:
        assert check.name in text
    assert "Headroom" in text
    for name in ("published rate", "2×", "2×, spread"):
        assert f"longest pause of the garbage collector, {name}: " in text
        assert f"schedule delay p99, {name}: " in text
    if cores is not None:
        assert os.sched_getaffinity(0) == cores


def test_pauses_of_the_collector_are_those_that_were_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = selftest.run_level

    def pausing(*args: Any, **more: Any) -> LevelResult:
        level = real(*args, **more)
        level.health = replace(level.health, gc_pause_max_ms=12.5, gc_pause_total_ms=20.25)
        return level

    monkeypatch.setattr(selftest, "run_level", pausing)
    text = self_test(seconds=0.3, factor=1).text()
    assert "longest pause of the garbage collector, 1×: 12.5 ms" in text
    assert "all its pauses, 1×: 20.25 ms" in text


def test_a_report_fails_with_any_check_or_fault() -> None:
    good = Check("a", 1.0, 2.0, "ms")
    assert SelfTestReport((good,), 9, 9, "m").passed
    for checks, faults in (
        ((good, Check("b", 3.0, 2.0, "ms")), ()),
        ((Check("c", 1.0, 2.0, "1/s", at_least=True),), ()),
        ((Check("d", float("nan"), 2.0, "ms"),), ()),
        ((good,), ("lost",)),
    ):
        report = SelfTestReport(checks, 9, 9, "m", faults)
        assert not report.passed
        assert "FAIL" in report.text()


def test_tokens_that_did_not_arrive_are_a_fault() -> None:
    level = LevelResult([RequestResult(0, 0, 1, completion_tokens=9)], 0, 1, None)  # type: ignore[arg-type]
    assert lost("x", level, NullStats(tokens=9)) == []
    assert lost("x", level, NullStats(tokens=10)) == ["x: 9 tokens arrived of 10 sent"]
    level.results[0].error = RequestError("reset", "m")
    assert lost("x", level, NullStats(tokens=9)) == ["x: 1 × reset"]
