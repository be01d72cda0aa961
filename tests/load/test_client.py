"""run_level against a server that sends exactly the bytes it is told to."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.errors import UserError
from kit.load import (
    Arrival,
    ClosedLoop,
    ConstantRate,
    Endpoint,
    LevelResult,
    Poisson,
    Request,
    RequestResult,
    Trace,
    run_level,
    summarize,
)
from tests.load.scripted import (
    STREAM_END,
    STREAM_HEAD,
    Action,
    Asked,
    Script,
    chunk,
    event,
    reply,
    scripted,
    state,
)


def requests(count: int, tokens: int = 4) -> list[Request]:
    return [Request(index=i, prompt_ids=[i, i + 1], max_new_tokens=tokens) for i in range(count)]


def answer(asked: Asked) -> list[Action]:
    total = asked.body["sampling_params"]["max_new_tokens"]
    return [reply(state(total, total, spec_verify_ct=3))]


def kinds(level: LevelResult) -> list[str | None]:
    return [r.error.kind if r.error else None for r in level.results]


def go(
    script: Script,
    count: int = 1,
    arrival: Arrival | None = None,
    *,
    stream: bool = False,
    tokens: int = 4,
    timeout_s: float = 5,
    **more: Any,
) -> LevelResult:
    with scripted(script) as server:
        return run_level(
            Endpoint(server.url, stream=stream),
            requests(count, tokens),
            arrival or ClosedLoop(1),
            timeout_s=timeout_s,
            **more,
        )


def test_every_request_is_sent_once_as_it_must_be() -> None:
    ended: list[int] = []
    with scripted(answer) as server:
        level = run_level(
            Endpoint(server.url), requests(9), ClosedLoop(3), timeout_s=10,
            on_result=lambda r: ended.append(r.index),
        )  # fmt: skip
        asked = server.asked
    assert sorted(a.body["input_ids"][0] for a in asked) == list(range(9))
    assert {a.line for a in asked} == {"POST /generate HTTP/1.1"}
    assert all(a.headers["content-type"] == "application/json" for a in asked)
    assert "authorization" not in asked[0].headers
    assert [r.index for r in level.results] == list(range(9)) == sorted(ended)
    assert kinds(level) == [None] * 9
    assert all(r.output_ids == [0, 1, 2, 3] and r.text == "éééé" for r in level.results)
    assert all(0 <= r.send_ns < r.end_ns for r in level.results)
    metrics = summarize(level)
    assert metrics.accept_length == pytest.approx(4 / 3)
    assert metrics.tok_s == pytest.approx(36 / ((level.end_ns - level.start_ns) * 1e-9))


def test_exactly_c_requests_are_in_flight_and_each_is_replaced() -> None:
    full = threading.Barrier(5, timeout=10)

    def script(asked: Asked) -> list[Action]:
        # Nobody is answered before five are there: with fewer in flight this would break the barrier.
        full.wait()
        return answer(asked)

    with scripted(script) as server:
        level = run_level(Endpoint(server.url), requests(20), ClosedLoop(5), timeout_s=20)
        assert server.most_flying == 5
        # Kept connections, one a slot.
        assert len({a.peer for a in server.asked}) == 5
    assert kinds(level) == [None] * 20


def test_fewer_requests_than_slots() -> None:
    assert kinds(go(answer, 2, ClosedLoop(50))) == [None, None]


def test_nothing_to_send() -> None:
    level = go(answer, 0, ClosedLoop(3))
    assert level.results == []
    assert summarize(level).tok_s == 0


def test_paths_keys_and_models() -> None:
    def script(_: Asked) -> list[Action]:
        return [
            reply(
                {
                    "choices": [{"text": "a", "message": {"content": "a"}}],
                    "usage": {"completion_tokens": 4},
                }
            )
        ]

    with scripted(script) as server:
        for base, api, path in (
            (server.url, "completions", "/v1/completions"),
            (server.url + "/v1/", "chat", "/v1/chat/completions"),
            (server.url + "/some/where", "completions", "/some/where/v1/completions"),
        ):
            point = Endpoint(base, api, model="m", api_key="s3cret")  # type: ignore[arg-type]
            assert "s3cret" not in repr(point)
            level = run_level(point, [Request(0, 4, text="hi")], ClosedLoop(1), timeout_s=5)
            assert kinds(level) == [None]
            assert server.asked[-1].line == f"POST {path} HTTP/1.1"
            assert server.asked[-1].headers["authorization"] == "Bearer s3cret"
            assert server.asked[-1].body["model"] == "m"


@pytest.mark.parametrize(
    "point",
    [Endpoint("127.0.0.1:30000"), Endpoint("ftp://x"), Endpoint("http://"), Endpoint("http://x:port"),
     Endpoint("http://x", api_key="a\r\nX: y")],
)  # fmt: skip
def test_a_bad_endpoint_is_the_users_error(point: Endpoint) -> None:
    with pytest.raises(UserError):
        run_level(point, requests(1), ClosedLoop(1), timeout_s=1)


def test_two_requests_with_one_index() -> None:
    with pytest.raises(UserError):
        run_level(Endpoint("http://x"), [*requests(1), *requests(1)], ClosedLoop(1), timeout_s=1)


# -- faults: each has its name, and loses nothing else

FAULTS: list[tuple[list[Action], str]] = [
    (["reset"], "reset"),
    (["close"], "reset"),
    ([b"HTTP/1.1 200 OK\r\n", "close"], "truncated"),
    ([b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "close"], "truncated"),
    ([b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "reset"], "reset"),
    ([STREAM_HEAD + chunk(b"{"), "close"], "truncated"),
    ([30.0], "timeout"),
    ([b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", 30.0], "timeout"),
    ([reply({"error": {"message": "overloaded"}})], "server-error"),
    ([reply({"error": "no"}, "503 Service Unavailable")], "http-status"),
    ([reply(b"", "302 Found", "Location: /elsewhere\r\n")], "http-status"),
    ([reply(b"", "204 No Content")], "http-status"),
    ([reply(b"not json")], "bad-json"),
    ([reply([1, 2])], "bad-json"),
    ([reply({"text": "x"})], "bad-json"),
    ([reply(b"\xff\xfe")], "bad-json"),
    ([reply(state(9, 9))], "token-count"),
    ([b"SSH-2.0-OpenSSH_9.6\r\n\r\n"], "bad-http"),
    ([STREAM_HEAD + b"zz\r\n"], "bad-http"),
    ([b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000, 30.0], "too-large"),
]


@pytest.mark.parametrize(("actions", "kind"), FAULTS)
def test_every_fault_has_a_name_and_loses_nothing_else(actions: list[Action], kind: str) -> None:
    def script(asked: Asked) -> list[Action]:
        return actions if asked.body["input_ids"][0] == 1 else answer(asked)

    heard: list[RequestResult] = []
    level = go(
        script, 4, ClosedLoop(2), timeout_s=0.5 if kind == "timeout" else 10, on_result=heard.append
    )
    assert kinds(level) == [None, kind, None, None]
    assert sorted(r.index for r in heard) == [0, 1, 2, 3]
    metrics = summarize(level)
    assert (metrics.errors, metrics.error_kinds) == (1, {kind: 1})
    error = level.results[1].error
    assert error is not None
    assert error.message
    assert len(error.message) <= 500


DRIPS: list[tuple[bytes, bytes]] = [
    (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b" "),
    (STREAM_HEAD, chunk(b": ping\n\n")),
    (STREAM_HEAD + chunk(b"data: "), chunk(b"x")),
]


@pytest.mark.parametrize(("begin", "drip"), DRIPS)
def test_a_server_that_drips_for_ever_runs_into_the_time_limit(begin: bytes, drip: bytes) -> None:
    def script(asked: Asked) -> list[Action]:
        if asked.number == 0:
            drips: list[Action] = [drip, 0.02]
            return [begin, *drips * 1500]
        return [STREAM_HEAD + chunk(steps_of(4, [1, 4]) + DONE) + STREAM_END]

    level = go(script, 2, stream=True, timeout_s=0.6)
    assert kinds(level) == ["timeout", None]
    # The limit is on the whole request: bytes that come do not extend it.
    assert 0.55e9 <= level.results[0].end_ns - level.results[0].send_ns < 20e9


def test_interim_answers_without_end_are_refused() -> None:
    assert kinds(go(lambda _: [b"HTTP/1.1 100 Continue\r\n\r\n" * 4000, 30.0], timeout_s=20)) == [
        "too-large"
    ]


def test_an_error_with_a_huge_body_keeps_its_beginning_only() -> None:
    body = b"overloaded " * 100_000

    def script(_: Asked) -> list[Action]:
        return [b"HTTP/1.1 503 Busy\r\nContent-Length: %d\r\n\r\n" % len(body) + body]

    level = go(script, 2)
    assert kinds(level) == ["http-status"] * 2
    error = level.results[0].error
    assert error is not None
    assert error.message.startswith("HTTP 503: overloaded overloaded")
    assert len(error.message) <= 400


def test_a_redirect_is_not_followed_and_says_so() -> None:
    with scripted(
        lambda _: [reply(b"", "307 Temporary Redirect", "Location: /generate2\r\n")]
    ) as server:
        level = run_level(Endpoint(server.url), requests(1), ClosedLoop(1), timeout_s=10)
        assert len(server.asked) == 1
    error = level.results[0].error
    assert error is not None
    assert "redirects are not followed" in error.message


def test_nobody_there_is_a_connect_error_for_each(free_port: int) -> None:
    url = f"http://127.0.0.1:{free_port}"
    for arrival in (ClosedLoop(2), ConstantRate(1000)):
        level = run_level(Endpoint(url), requests(5), arrival, timeout_s=5)
        assert kinds(level) == ["connect"] * 5


def test_a_server_that_closes_every_connection_is_followed() -> None:
    def script(asked: Asked) -> list[Action]:
        total = asked.body["sampling_params"]["max_new_tokens"]
        return [reply(state(total, total), headers="Connection: close\r\n"), "close"]

    with scripted(script) as server:
        level = run_level(Endpoint(server.url), requests(6), ClosedLoop(2), timeout_s=10)
        assert len({a.peer for a in server.asked}) == 6
    assert kinds(level) == [None] * 6


def test_an_answer_that_ends_with_its_connection() -> None:
    raw = json.dumps(state(4, 4)).encode()
    level = go(lambda _: [b"HTTP/1.0 200 OK\r\n\r\n" + raw[:9], raw[9:], "close"], 2)
    assert kinds(level) == [None, None]


def test_interim_answers_are_skipped() -> None:
    level = go(lambda a: [b"HTTP/1.1 100 Continue\r\n\r\n", *answer(a)], 3)
    assert kinds(level) == [None] * 3


def test_bytes_beyond_an_answer_never_become_the_next_one() -> None:
    bad = reply(state(1, 1))

    def script(asked: Asked) -> list[Action]:
        return [reply(state(4, 4)) + bad] if asked.number == 0 else answer(asked)

    level = go(script, 2)
    assert kinds(level) == [None, None]
    assert [r.completion_tokens for r in level.results] == [4, 4]


def test_a_huge_body_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kit.load.flight.BODY_LIMIT", 100_000)

    def script(_: Asked) -> list[Action]:
        return [b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n", b"x" * 200_000, 30.0]

    assert kinds(go(script, 1, timeout_s=20)) == ["too-large"]


def test_a_stream_without_newline_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kit.load.flight.LINE_LIMIT", 50_000)
    level = go(
        lambda _: [STREAM_HEAD + chunk(b"data: " + b"x" * 100_000), 30.0], stream=True, timeout_s=20
    )
    assert kinds(level) == ["too-large"]


# -- streams


def steps_of(total: int, steps: list[int]) -> bytes:
    return b"".join(event(state(done, total)) for done in steps)


DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("cut", [1, 7, 60, 10_000])
def test_a_stream_is_read_whole_however_it_is_cut(cut: int, newline: bytes) -> None:
    raw = (b": comment\n\n" + steps_of(6, [1, 4, 6]) + DONE).replace(b"\n", newline)

    def script(_: Asked) -> list[Action]:
        pieces = [raw[i : i + cut] for i in range(0, len(raw), cut)]
        return [STREAM_HEAD, *(chunk(p) for p in pieces), STREAM_END]

    level = go(script, 2, stream=True, tokens=6)
    assert kinds(level) == [None, None]
    for r in level.results:
        assert [n for _, n in r.chunks] == [1, 4, 6]
        assert r.output_ids == [0, 1, 2, 3, 4, 5]
        assert r.text == "éééééé"
        assert r.first_ns is not None
        assert r.send_ns < r.first_ns <= r.end_ns
        assert [t for t, _ in r.chunks] == sorted(t for t, _ in r.chunks)
    assert level.health.events == 2 * 4


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.integers(1, 2000), max_size=8),
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.booleans(),
)
def test_tcp_and_http_cuts_lose_nothing(
    cuts: list[int], grow: list[int], incremental: bool
) -> None:
    total = sum(grow)
    steps = [sum(grow[: i + 1]) for i in range(len(grow))]
    before = [0, *steps[:-1]] if incremental else [0] * len(steps)
    parts = [event(state(d, total, b)) for d, b in zip(steps, before, strict=True)]
    wire = STREAM_HEAD + b"".join(chunk(p) for p in [*parts, DONE]) + STREAM_END
    places = sorted({c % len(wire) for c in cuts})
    pieces = [wire[a:b] for a, b in zip([0, *places], [*places, len(wire)], strict=True) if b > a]
    level = go(lambda _: list(pieces), stream=True, tokens=total)
    assert kinds(level) == [None]
    assert [n for _, n in level.results[0].chunks] == steps
    assert level.results[0].output_ids == list(range(total))


BROKEN: list[tuple[list[Action], str, list[int]]] = [
    ([chunk(steps_of(4, [1, 2])), STREAM_END], "truncated", [1, 2]),
    ([chunk(steps_of(4, [1, 4])), STREAM_END], "truncated", [1, 4]),
    ([chunk(steps_of(4, [1, 2])), "close"], "truncated", [1, 2]),
    ([chunk(steps_of(4, [1, 2])), "reset"], "reset", [1, 2]),
    ([chunk(steps_of(4, [1, 2])), 30.0], "timeout", [1, 2]),
    ([STREAM_END], "truncated", []),
    ([chunk(DONE), STREAM_END], "truncated", []),
    (
        [chunk(steps_of(4, [1]) + b'data: {"error": {"message": "died"}}\n\n' + DONE), STREAM_END],
        "server-error",
        [1],
    ),
    (
        [chunk(steps_of(4, [1]) + b'event: error\ndata: {"x": 1}\n\n'), STREAM_END],
        "server-error",
        [1],
    ),
    ([chunk(steps_of(4, [1]) + b"data: {half\n\n"), 30.0], "bad-json", [1]),
    ([chunk(steps_of(4, [2, 1])), 30.0], "token-count", [2]),
    ([chunk(steps_of(9, [2, 9])), 30.0], "token-count", [2, 9]),
]


@pytest.mark.parametrize(("actions", "kind", "seen"), BROKEN)
def test_a_broken_stream_has_a_name_and_keeps_what_came(
    actions: list[Action], kind: str, seen: list[int]
) -> None:
    def script(asked: Asked) -> list[Action]:
        if asked.number == 0:
            return [STREAM_HEAD, *actions]
        return [STREAM_HEAD + chunk(steps_of(4, [1, 4]) + DONE) + STREAM_END]

    level = go(script, 2, stream=True, timeout_s=0.5 if kind == "timeout" else 10)
    assert kinds(level) == [kind, None]
    assert [n for _, n in level.results[0].chunks] == seen
    if kind != "token-count":
        assert level.results[0].completion_tokens == (seen[-1] if seen else None)
    assert summarize(level).tok_s == pytest.approx(4 / ((level.end_ns - level.start_ns) * 1e-9))


def test_a_plain_answer_to_a_stream_is_an_error_and_says_what_it_was() -> None:
    assert kinds(go(lambda _: [reply(state(4, 4))], stream=True)) == ["bad-http"]
    assert kinds(go(lambda _: [reply({"error": {"message": "m"}})], stream=True)) == [
        "server-error"
    ]
    assert kinds(go(lambda _: [reply({}, "400 Bad Request")], stream=True)) == ["http-status"]


# -- open loops


@pytest.mark.parametrize(
    "arrival",
    [
        Poisson(400, seed=3),
        ConstantRate(500),
        Trace((0.0, 0.0, 0.01, 0.02, 0.02, 0.05, 0.05, 0.06, 0.06, 0.06)),
    ],
)
def test_an_open_loop_sends_on_schedule_and_does_not_wait_for_answers(arrival: Arrival) -> None:
    everybody = threading.Event()
    count = 10

    def script(asked: Asked) -> list[Action]:
        if asked.number == count - 1:
            everybody.set()
        assert everybody.wait(10)
        return answer(asked)

    level = go(script, count, arrival, timeout_s=20)
    assert kinds(level) == [None] * count
    for r in level.results:
        assert r.planned_ns is not None
        assert r.send_ns >= r.planned_ns
    assert level.arrival is arrival
    assert summarize(level).steady_tok_s is None
    if isinstance(arrival, Trace):
        assert [r.planned_ns for r in level.results] == [round(t * 1e9) for t in arrival.times]


@pytest.mark.parametrize("arrival", [ClosedLoop(1), ConstantRate(50)])
def test_the_schedule_delay_is_in_milliseconds_and_of_every_send(arrival: Arrival) -> None:
    level = go(answer, 12, arrival)
    rows = level.results
    if isinstance(arrival, ClosedLoop):
        late = [after.send_ns - before.end_ns for before, after in pairwise(rows)]
    else:
        late = [r.send_ns - (r.planned_ns or 0) for r in rows]
    assert all(ns > 0 for ns in late)
    told = level.health.schedule_delay_p99_ms
    assert told == pytest.approx(float(np.percentile(late, 99)) * 1e-6, rel=1e-9)


def test_a_trace_of_another_length() -> None:
    with pytest.raises(UserError, match="2 times for 3 requests"):
        run_level(Endpoint("http://x"), requests(3), Trace((0.0, 1.0)), timeout_s=1)


# -- endings


def test_an_error_of_the_callback_ends_the_level_and_is_raised() -> None:
    def full(_: RequestResult) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        go(answer, 50, ClosedLoop(2), on_result=full)


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_ends_at_once_with_what_was_measured(workers: int) -> None:
    def script(asked: Asked) -> list[Action]:
        return answer(asked) if asked.body["input_ids"][0] < 3 else [30.0]

    program = textwrap.dedent("""
        import sys
        from kit.load import *
        reqs = [Request(index=i, prompt_ids=[i, i], max_new_tokens=4) for i in range(20)]
        try:
            run_level(Endpoint(sys.argv[1]), reqs, ClosedLoop(5), timeout_s=60, workers=int(sys.argv[2]),
                      on_result=lambda r: print(r.index, flush=True))
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """)
    with scripted(script) as server:
        process = subprocess.Popen(
            [sys.executable, "-c", program, server.url, str(workers)],
            stdout=subprocess.PIPE,
            text=True,
            # A shell's background job ignores the signal, and would hand that on.
        )
        assert process.stdout is not None
        seen = [process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(20) == 0
        process.stdout.close()
    assert sorted(seen) == ["0\n", "1\n", "2\n"]
    assert rest == "interrupted\n"
