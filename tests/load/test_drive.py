"""``kit bench`` with ``--arrival`` or ``--api``: any server, any arrival, against the null server."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from kit import drive
from kit.cli import cli
from kit.errors import EngineError, UserError
from kit.load import (
    ClosedLoop,
    ConstantRate,
    Endpoint,
    LevelResult,
    Poisson,
    Request,
    Trace,
)
from kit.load.arrivals import arrival_text, parse_arrival, planned_sends, read_trace
from kit.load.model import ChunkLog, ClientHealth, RequestError, RequestResult
from kit.load.nulldata import NullConfig
from kit.load.nullserver import NullServer, null_server
from tests.load.scripted import (
    STREAM_END,
    STREAM_HEAD,
    Action,
    Asked,
    chunk,
    event,
    reply,
    scripted,
)


@pytest.fixture(scope="module")
def server() -> Iterator[NullServer]:
    with null_server(NullConfig(interval_ms=2, ttft_ms=3)) as found:
        yield found


def bench(*args: str) -> Any:
    return CliRunner().invoke(cli, ["bench", *args])


@pytest.mark.parametrize("api", ["generate", "completions", "chat"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("arrival", ["closed:3", "poisson:200:5", "constant:200", "trace"])
def test_each_api_with_each_arrival(
    server: NullServer, tmp_path: Path, api: str, stream: bool, arrival: str
) -> None:
    if arrival == "trace":
        (tmp_path / "t.txt").write_text(
            "0  # at once\n\n" + "".join(f"{0.01 * i}\n" for i in range(1, 12))
        )
        arrival = f"trace:{tmp_path}/t.txt"
    server.reset()
    result = bench(
        "--url", server.url, "--api", api, "--arrival", arrival, *["--stream"] * stream, "--requests", "12",
        "--tokens", "7", "--out", str(tmp_path / "out"), "--json",
    )  # fmt: skip
    found = json.loads(result.stdout)[0]
    # On a busy machine the client may rightly say that it was late; that is its only way to fail here.
    assert result.exit_code == (3 if found["client"]["client_bound"] else 0)
    stats = server.stats()
    assert stats.completed == 12 + 2  # and the two that warm the server up
    assert stats.tokens == 14 * 7
    assert (found["api"], found["stream"], found["requests"], found["asked_tokens"]) == (
        api,
        stream,
        12,
        7,
    )
    assert found["model"] == (None if api == "generate" else "null")
    assert found["figures"]["errors"] == 0
    assert bool(found["figures"]["ttft_s"]) == bool(found["figures"]["itl_s"]) == stream
    (file,) = (tmp_path / "out").iterdir()
    kept = json.loads(file.read_text())
    results = kept.pop("results")
    assert kept == found
    assert [r["index"] for r in results] == list(range(12))
    for r in results:
        assert r["completion_tokens"] == 7
        assert len(r["chunks"]) == (7 if stream else 0)
        if not arrival.startswith("closed"):
            # Sent at its time, never before.
            assert r["send_ns"] >= r["planned_ns"]
            assert found["client"]["schedule_delay_p99_ms"] >= 0
    if not arrival.startswith("closed"):
        wanted = planned_sends(parse_arrival(arrival), 12)  # type: ignore[arg-type]
        assert [r["planned_ns"] for r in results] == wanted


def test_levels_are_closed_loops_and_figures_are_printed(server: NullServer) -> None:
    result = bench(
        "--url", f"{server.url}/", "--levels", "1,3", "--stream", "--tokens", "5", "--requests", "6"
    )
    assert result.exit_code in (0, 3)
    for told in (
        "closed:1, generate (stream)",
        "closed:3",
        "time to first token, ms",
        "schedule delay",
        "6 of 5",
    ):
        assert told in result.output
    assert "FAILED" not in result.output


def test_a_server_without_that_api_is_the_users_error(server: NullServer) -> None:
    result = bench("--url", f"{server.url}/elsewhere", "--api", "chat", "--requests", "2")
    assert isinstance(result.exception, EngineError)
    assert "http-status" in result.exception.sentence
    assert "404" in result.exception.sentence
    result = bench("--url", "http://127.0.0.1:9", "--api", "completions")
    assert isinstance(result.exception, EngineError)
    assert "does not answer" in result.exception.sentence


# -- servers that refuse to be asked for counts

RUNNING = {"include_usage": True, "continuous_usage_stats": True}
FINAL = {"include_usage": True}


def strict(refused: set[str], status: str, counts: bool = True) -> Any:
    """A chat server that refuses some keys, each by its name as the body or its ``stream_options`` have it."""

    def script(asked: Asked) -> list[Action]:
        options = asked.body.get("stream_options", {})
        if refused & {*asked.body, *options}:
            return [reply({"error": {"message": f"extra inputs, question {asked.number}"}}, status)]
        texts = [{"choices": [{"index": 0, "delta": {"content": "a"}}]} for _ in range(4)]
        usage = {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 4}}
        sent = [*texts, {"choices": [{"delta": {}, "finish_reason": "length"}]}, *[usage] * counts]
        body = b"".join(event(e) for e in sent) + b"data: [DONE]\n\n"
        return [STREAM_HEAD + chunk(body) + STREAM_END]

    return script


@pytest.mark.parametrize("status", ["400 Bad Request", "422 Unprocessable Entity"])
@pytest.mark.parametrize(
    ("refused", "asked", "usage"),
    [
        ({"continuous_usage_stats"}, [RUNNING, FINAL], "final"),
        ({"stream_options"}, [RUNNING, FINAL, None], "unasked"),
    ],
)
def test_a_server_that_refuses_stream_options_is_asked_for_less_before_the_clock(
    status: str, refused: set[str], asked: list[Any], usage: str
) -> None:
    with scripted(strict(refused, status)) as strange:
        args = ["--url", strange.url, "--api", "chat", "--stream", "--model", "m", "--tokens", "4"]
        result = bench(*args, "--requests", "3", "--arrival", "closed:1", "--arrival", "closed:3")
        told = bench(*args, "--requests", "3", "--json")
    # Each form was tried by the two requests that warm up, and what was accepted is used from then on.
    options = [a.body.get("stream_options") for a in strange.asked]
    first = [o for o in asked for _ in range(2)]
    assert options[: len(first) + 8] == first + [asked[-1]] * (3 + 2 + 3)
    assert result.exit_code in (0, 3), result.output
    assert "token counts" in result.output
    found = json.loads(told.stdout)[0]
    assert (found["usage"], found["figures"]["errors"]) == (usage, 0)
    assert found["figures"]["ttft_s"]
    # Four events brought four tokens, but no count says that each brought one.
    assert found["figures"]["itl_s"] == {}


def test_a_server_that_refuses_whatever_it_is_asked_says_why_it_refused_first() -> None:
    with scripted(strict({"ignore_eos"}, "400 Bad Request")) as strange:
        result = bench("--url", strange.url, "--api", "chat", "--stream", "--model", "m")
    assert isinstance(result.exception, EngineError)
    assert "HTTP 400" in result.exception.sentence
    assert "question 0" in result.exception.sentence or "question 1" in result.exception.sentence
    assert len(strange.asked) == 6


def test_a_server_that_counts_nothing_says_so_and_not_that_it_refused() -> None:
    with scripted(strict({"stream_options"}, "400 Bad Request", counts=False)) as strange:
        result = bench("--url", strange.url, "--api", "chat", "--stream", "--model", "m")
    assert isinstance(result.exception, EngineError)
    assert "gave no usage" in result.exception.sentence


@pytest.mark.parametrize(
    ("args", "status"),
    [
        (["--api", "chat", "--stream"], "503 Busy"),
        (["--api", "chat", "--stream"], "401 Unauthorized"),
        (["--api", "chat"], "400 Bad Request"),
        (["--api", "generate", "--stream"], "400 Bad Request"),
    ],
)
def test_what_is_no_refusal_of_stream_options_is_not_asked_again(
    args: list[str], status: str
) -> None:
    with scripted(strict({"stream"}, status)) as strange:
        result = bench("--url", strange.url, "--model", "m", *args)
    assert isinstance(result.exception, EngineError)
    assert len(strange.asked) == 2


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["spec-v2", "--tokens", "4"], "go with --arrival"),
        (["--arrival", "closed:2"], "name a scenario"),
        (["--arrival", "sometimes:2"], "not an arrival"),
        ([], "name a scenario"),
    ],
)
def test_options_that_do_not_fit(args: list[str], told: str) -> None:
    result = bench(*args)
    assert result.exit_code == 2
    assert told in result.output


class _Models(http.server.BaseHTTPRequestHandler):
    reply: tuple[int, bytes] = (200, b"")
    seen: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.seen.append(self.headers.get("Authorization"))
        self.send_response(self.reply[0])
        if self.reply[0] == 302:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(self.reply[1])))
        self.end_headers()
        self.wfile.write(self.reply[1])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def models() -> Iterator[tuple[type[_Models], str]]:
    handler = type("Handler", (_Models,), {"seen": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        thread = threading.Thread(target=served.serve_forever, args=(0.02,))
        thread.start()
        yield handler, f"http://127.0.0.1:{served.server_address[1]}"
        served.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "body", "model"),
    [
        (200, b'{"data": [{"id": "a/b"}, {"id": "c"}]}', "a/b"),
        (200, b'{"data": []}', None),
        (200, b'["x"]', None),
        (200, b"<html>", None),
        (404, b"{}", None),
        (302, b"", None),
    ],
)
def test_the_first_model_listed(
    models: tuple[type[_Models], str], status: int, body: bytes, model: str | None
) -> None:
    handler, url = models
    handler.reply = (status, body)
    assert drive.served_model(f"{url}/v1/", "secret") == model
    # A redirect is not followed: it would carry the key along.
    assert handler.seen == ["Bearer secret"]


def test_a_refused_key_says_which_variable(models: tuple[type[_Models], str]) -> None:
    handler, url = models
    handler.reply = (401, b"{}")
    with pytest.raises(EngineError, match="refuses the key") as caught:
        drive.served_model(url)
    assert "KIT_API_KEY" in caught.value.remedy
    assert handler.seen == [None]


# -- what is sent


class _Plan:
    def prompt(self, seed: int, tokens: int) -> list[int]:
        return [seed] * tokens

    def first_mismatch(self, prompt_ids: list[int], output_ids: list[int]) -> int | None:
        return None if output_ids == [prompt_ids[0] + 1] else 0


@given(st.integers(1, 200), st.integers(0, 500))
def test_no_prompt_is_sent_twice(count: int, first: int) -> None:
    for plan in (None, _Plan()):
        sent = drive.requests_for("generate", count, 5, 3, plan, first)  # type: ignore[arg-type]
        more = drive.requests_for("generate", 5, 5, 3, plan, first + count)  # type: ignore[arg-type]
        assert [r.index for r in sent] == list(range(count))
        prompts = [str(r.prompt_ids or r.text) for r in [*sent, *more]]
        assert len(set(prompts)) == count + 5
        assert all((r.prompt_ids is None) == (plan is None) and r.max_new_tokens == 5 for r in sent)


def test_the_chat_api_gets_text_even_where_token_ids_are_there() -> None:
    (sent,) = drive.requests_for("chat", 1, 5, 3, _Plan())  # type: ignore[arg-type]
    assert sent.prompt_ids is None
    assert sent.text


def test_how_many_are_sent() -> None:
    trace = Trace((0.0, 1.0, 2.0))
    assert drive.count_for(trace, None) == 3
    assert drive.count_for(trace, 2) == 2
    assert drive.limited(trace, 2) == Trace((0.0, 1.0))
    with pytest.raises(UserError, match="3 times, fewer than 4"):
        drive.count_for(trace, 4)
    assert drive.count_for(ClosedLoop(50), None) == 200
    assert drive.count_for(ClosedLoop(1), None) == drive.count_for(Poisson(3), None) == 40
    assert drive.count_for(ClosedLoop(50), 7) == 7
    assert drive.limited(ClosedLoop(5), 2) == ClosedLoop(5)


def test_processes_follow_the_rate_of_an_open_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    # A process for every 20,000 events a second.
    assert drive.workers_of(Poisson(500), 100, True) == 3
    assert drive.workers_of(ConstantRate(200), 100, True) == 1
    assert drive.workers_of(Poisson(500), 100, False) == 1
    assert drive.workers_of(ClosedLoop(9000), 100, True) == 1
    assert drive.workers_of(Trace(tuple(i / 500 for i in range(501))), 100, True) == 3
    assert drive.workers_of(Trace((1.0, 1.0)), 100, True) == 1


def test_two_processes_send_what_one_would(server: NullServer) -> None:
    server.reset()
    args = [
        "--stream",
        "--arrival",
        "constant:200",
        "--requests",
        "30",
        "--tokens",
        "5",
        "--workers",
        "2",
        "--json",
    ]
    found = json.loads(bench("--url", server.url, *args).stdout)[0]
    assert found["client"]["workers"] == 2
    assert found["figures"]["errors"] == 0
    assert server.stats().tokens == 32 * 5
    assert found["client"]["events"] == 30 * 6


# -- what came back


def _level(*results: RequestResult, bound: str = "") -> LevelResult:
    return LevelResult(
        list(results),
        0,
        2_000_000_000,
        ClientHealth(0.1, 0.2, 12.5, bool(bound), bound, gc_pause_max_ms=3.25),
    )


def test_an_outcome_counts_what_differs_and_is_unsound_with_any_fault() -> None:
    asked = [Request(i, 1, prompt_ids=[i]) for i in range(3)]
    good = [RequestResult(i, 0, 10, completion_tokens=1, output_ids=[i + 1]) for i in range(3)]
    point = Endpoint("http://h")

    def judge(level: LevelResult, plan: Any = _Plan()) -> tuple[Any, bool]:  # noqa: B008
        found = drive.outcome(point, ConstantRate(2), asked, level, plan)
        return found["differing"], drive.is_sound(found)

    assert judge(_level(*good)) == (0, True)
    assert judge(_level(*good), None) == (None, True)
    assert judge(_level(*good, bound="slow")) == (0, False)
    bad = RequestResult(1, 0, 10, completion_tokens=1, output_ids=[9])
    assert judge(_level(good[0], bad, good[2])) == (1, False)
    failed = RequestResult(1, 0, 10, error=RequestError("reset", "gone"))
    assert judge(_level(good[0], failed, good[2])) == (0, False)


def test_the_text_says_what_was_measured() -> None:
    asked = [Request(0, 4, text="a"), Request(1, 4, text="b")]
    result = RequestResult(
        0, 0, 1_000_000_000, 250_000_000, ChunkLog([(250_000_000, 1), (1_000_000_000, 4)]), 2, 4, 3, 2
    )  # fmt: skip
    level = _level(
        result, RequestResult(1, 0, 5, error=RequestError("timeout", "late")), bound="it was slow"
    )
    point = Endpoint("http://h", "chat", stream=True)
    told = drive.text(drive.outcome(point, Poisson(2, 7), asked, level))
    for part in (
        "poisson:2:7, chat (stream) at http://h",
        "2 of 4 output tokens, 1 failed",
        "2.00 s",
        "2.0 tok/s",  # 4 tokens in 2 s
        "accept length:               2.000",
        "p50 250.0",  # to the first token, and between tokens: 750 ms for 3
        "from cache:    3",
        "p99 12.50 ms (sent after its time)",
        "longest GC pause 3.25 ms",
        "FAILED: 1 × timeout; first: timeout: late",
        "INVALID: the client was the bottleneck: it was slow",
    ):
        assert part in told
    result.cached_tokens = None
    silent = drive.text(drive.outcome(point, Poisson(2, 7), asked, level))
    assert "from cache:    unknown: the server does not say" in silent
    assert "after the end before" in drive.text(drive.outcome(point, ClosedLoop(2), asked, level))


# -- arrivals by name


@given(
    st.one_of(
        st.integers(1, 10**6).map(ClosedLoop),
        st.integers(1, 10**5).map(lambda n: ConstantRate(n / 64)),
        st.builds(lambda n, seed: Poisson(n / 64, seed), st.integers(1, 10**5), st.integers(0, 99)),
    )
)
def test_an_arrival_reads_as_it_is_written(arrival: Any) -> None:
    again = parse_arrival(arrival_text(arrival))
    if isinstance(arrival, ClosedLoop):
        assert again == arrival
    else:
        assert type(again) is type(arrival)
        assert again.rate == pytest.approx(arrival.rate, rel=1e-5)  # type: ignore[union-attr]
        assert getattr(again, "seed", None) == getattr(arrival, "seed", None)


@pytest.mark.parametrize(
    "bad",
    ["closed:0", "closed:x", "closed:1.5", "constant:", "constant:nan", "poisson:-1", "poisson:1:x", "trace:", "x:1"],
)  # fmt: skip
def test_arrivals_that_are_none(bad: str) -> None:
    with pytest.raises(UserError):
        parse_arrival(bad)


@pytest.mark.parametrize(
    ("text", "told"),
    [("", "no times"), ("# none\n", "no times"), ("0\nx\n", "Line 2"), ("1\n0\n", "backwards"), ("-1\n", "below 0")],
)  # fmt: skip
def test_traces_that_cannot_be_read(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "t").write_text(text)
    with pytest.raises(UserError, match=told):
        read_trace(tmp_path / "t")


def test_a_trace_file_that_is_missing_or_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_trace(tmp_path / "t")
    monkeypatch.setattr("kit.load.arrivals.TRACE_BYTES", 4)
    (tmp_path / "t").write_text("0\n1\n2\n")
    with pytest.raises(UserError, match="larger than"):
        read_trace(tmp_path / "t")
