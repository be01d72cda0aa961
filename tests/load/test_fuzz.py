"""Any bytes at all, valid answers with faults put in, and the committed corpus, against tests/load/fuzzing.py."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.load.connection import Connection
from kit.load.model import Api
from kit.load.nulldata import NullConfig, output_ids, render
from tests.load.fuzzing import APIS, ASKED, ENDINGS, TARGETS, check_result, exchange, told

CORPUS = Path(__file__).parent / "corpus"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def framed(parts: list[bytes]) -> bytes:
    return HEAD + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in parts if p) + b"0\r\n\r\n"


def answer(api: Api, each: int, incremental: bool, end: bytes = b"\n") -> list[bytes]:
    config = NullConfig(tokens_per_event=each, incremental=incremental)
    return [b"data: " + e + end + end for e in render(config, api, 3, ASKED, True)]


@pytest.mark.parametrize(
    "path", sorted(CORPUS.rglob("*.bin")), ids=lambda p: f"{p.parent.name}/{p.stem}"
)
def test_the_corpus(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


def test_the_corpus_is_there() -> None:
    assert {p.name for p in CORPUS.iterdir()} == set(TARGETS)
    assert len(list(CORPUS.rglob("*.bin"))) > 40


@given(st.binary(max_size=300))
def test_any_bytes_as_a_stream(raw: bytes) -> None:
    TARGETS["sse"](raw)


pieces_of_http = st.lists(
    st.one_of(
        st.sampled_from([
            HEAD, b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 302 Found\r\nLocation: /\r\n",
            b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
            b"Content-Length: 9\r\n", b"Content-Length: 0\r\n", b"Connection: close\r\n",
            b"Content-Type: text/event-stream\r\n", b"Content-Type: application/json\r\n",
            b"Transfer-Encoding: chunked\r\n", b"\r\n", b"\n", b"\r", b"5\r\ndata:\r\n", b"0\r\n\r\n",
            b"ffffffffffffffff1\r\n",
            DONE, b"event: error\n", b"data: {}\n\n", b'data: {"error": 1}\n\n', b": ping\n\n",
            b'{"error": {"message": "m"}}',
            b'{"text":"a","output_ids":[1],"meta_info":{"completion_tokens":1}}',
            b'data: {"choices":[{"text":"a"}],"usage":{"completion_tokens":1}}\n\n',
        ]),
        st.binary(max_size=12),
    ),
    max_size=10,
)  # fmt: skip


@given(st.integers(0, 255), st.lists(st.integers(0, 80), max_size=15), pieces_of_http)
def test_any_pieces_as_an_answer(mode: int, cuts: list[int], parts: list[bytes]) -> None:
    TARGETS["http"](bytes([mode, len(cuts), *cuts]) + b"".join(parts))


@given(
    st.sampled_from(APIS), st.integers(1, 4), st.booleans(), st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.lists(st.integers(1, 400), max_size=12), st.booleans(), st.sampled_from(ENDINGS),
)  # fmt: skip
def test_a_sound_stream_in_any_framing(
    api: Api, each: int, incremental: bool, end: bytes, cuts: list[int], comments: bool, ending: str
) -> None:
    body = b"".join([*answer(api, each, incremental, end), DONE])
    if comments:
        body = body.replace(end + end, end + end + b": ping" + end + end)
    # Both the HTTP chunks and the reads are cut anywhere.
    parts, at = [], 0
    for size in cuts:
        parts.append(body[at : at + size])
        at += size
    wire = framed([*parts, body[at:]])
    reads, at = [], 0
    for size in reversed(cuts):
        reads.append(wire[at : at + size])
        at += size
    result, usable = exchange([r for r in [*reads, wire[at:]] if r], api, True, ending)
    assert result.error is None
    check_result(result, api, True)
    assert [n for _, n in result.chunks] == [*range(1, ASKED, each), ASKED]
    assert result.text == " word" * ASKED
    assert (result.prompt_tokens, result.finish_reason) == (3, "length")
    if api == "generate":
        assert result.output_ids == output_ids(ASKED)
    assert usable


faults = st.lists(
    st.tuples(st.sampled_from(["drop", "double", "swap", "late", "error"]), st.integers(0, 20)),
    max_size=3,
)


@given(st.sampled_from(APIS), st.integers(1, 4), st.booleans(), faults)
def test_events_lost_doubled_or_out_of_order_never_give_a_wrong_answer(
    api: Api, each: int, incremental: bool, wrong: list[tuple[str, int]]
) -> None:
    sound = answer(api, each, incremental)
    events = [*sound, DONE]
    for kind, place in wrong:
        at = place % len(events)
        if kind == "drop" and len(events) > 1:
            del events[at]
        elif kind == "double":
            events.insert(at, events[at])
        elif kind == "swap":
            other = (at + 1) % len(events)
            events[at], events[other] = events[other], events[at]
        elif kind == "late":
            events.append(sound[at % len(sound)])
        elif kind == "error":
            events.insert(at, b'data: {"error": {"message": "overloaded", "code": 503}}\n\n')
    result, _ = exchange([framed(events)], api, True, "stall")
    check_result(result, api, True)
    if any(kind == "error" for kind, _ in wrong) and b'data: {"error"' in b"".join(events):
        assert result.error is not None
    if result.error is None:
        # What is called sound has every token that the last events told of, and for token ids exactly those.
        if api == "generate":
            assert result.output_ids == output_ids(result.completion_tokens or 0)
        if result.finish_reason is not None:
            assert result.completion_tokens == ASKED
    elif result.error.kind != "server-error":
        assert result.error.kind in ("token-count", "truncated", "bad-json")


def state(tokens: int) -> dict[str, Any]:
    return {
        "text": "x" * tokens,
        "output_ids": [1] * tokens,
        "meta_info": {"completion_tokens": tokens},
    }


@pytest.mark.parametrize("api", APIS)
def test_an_event_after_the_end_is_an_error(api: Api) -> None:
    sound = answer(api, 3, False)
    result, usable = exchange([framed([*sound, DONE, sound[-1]])], api, True, "stall")
    assert result.error is not None
    assert result.error.kind == "token-count"
    assert "after [DONE]" in result.error.message
    assert not usable
    # A second end, or a comment after it, is nothing to lose an answer over.
    result, usable = exchange([framed([*sound, DONE, DONE, b": bye\n\n"])], api, True, "stall")
    assert result.error is None
    assert usable


def test_an_endless_stream_of_tiny_events_ends_when_it_says_too_much() -> None:
    events = [b"data: " + json.dumps(state(n)).encode() + b"\n\n" for n in range(1, 1000)]
    result, usable = exchange([framed(events)], "generate", True, "stall")
    assert result.error is not None
    assert result.error.kind == "token-count"
    assert [n for _, n in result.chunks] == list(range(1, ASKED + 2))
    assert not usable


def test_told_leaves_times_out_only() -> None:
    a, _ = exchange([framed([*answer("chat", 1, False), DONE])], "chat", True, "eof")
    assert told(a)[:3] == (None, list(range(1, ASKED + 1)), ASKED)


def test_an_error_of_the_reader_itself_is_not_taken_for_bad_http() -> None:
    class Broken:
        def head(self, status: int, event_stream: bool) -> bool:
            raise ZeroDivisionError((status, event_stream))

    connection = Connection()
    connection.connection_made(asyncio.Transport())
    connection._sink = Broken()  # type: ignore[assignment]
    connection._parser = httptools.HttpResponseParser(connection)
    with pytest.raises(ZeroDivisionError):
        connection.data_received(HEAD)
