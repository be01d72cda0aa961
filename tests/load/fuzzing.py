"""What must hold for any bytes that a server sends: one function a target, for hypothesis, the corpus and atheris.

The first bytes of an input say how the rest is cut into reads; the rest is what the server sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any, get_args

from kit.load.connection import Connection
from kit.load.flight import Flight
from kit.load.model import Api, Endpoint, ErrorKind, Request, RequestResult
from kit.load.replies import reply_for
from kit.load.sse import Event, EventTooLargeError, SseParser

ASKED = 8
APIS: tuple[Api, ...] = get_args(Api)
KINDS = set(get_args(ErrorKind))
ENDINGS = ("eof", "reset", "stall")


def plain_events(stream: bytes) -> list[Event]:
    """The standard, read word by word over the whole stream at once."""
    lines = (
        stream.removeprefix(b"\xef\xbb\xbf")
        .replace(b"\r\n", b"\n")
        .replace(b"\r", b"\n")
        .split(b"\n")
    )
    events: list[Event] = []
    data: list[bytes] = []
    name = b""
    for line in [*lines, b""]:
        if line == b"":
            if data:
                events.append(Event(b"\n".join(data), name))
            data, name = [], b""
        elif not line.startswith(b":"):
            field, _, value = line.partition(b":")
            value = value[1:] if value.startswith(b" ") else value
            if field == b"data":
                data.append(value)
            elif field == b"event":
                name = value
    return events


def cut(raw: bytes) -> tuple[bytes, list[bytes]]:
    """Return what is sent and the reads it comes in: a count, that many lengths, then the bytes."""
    if not raw:
        return b"", []
    count = raw[0] % 16
    lengths, wire = raw[1 : 1 + count], raw[1 + count :]
    pieces, at = [], 0
    for length in lengths:
        pieces.append(wire[at : at + length])
        at += length
    return wire, [p for p in [*pieces, wire[at:]] if p]


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    def write(self, data: Any) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


def exchange(
    pieces: list[bytes], api: Api, stream: bool, ending: str
) -> tuple[RequestResult, bool]:
    """Let a server answer with ``pieces``; return the result and whether the connection would be used again."""
    landed: list[Connection | None] = []
    request = Request(0, ASKED, prompt_ids=[1])
    result = RequestResult(index=0, send_ns=0)
    reply = reply_for(Endpoint("http://h", api, stream=stream), request, result, 0)
    flight = Flight(reply, stream, 0, lambda _, connection: landed.append(connection))
    connection, transport = Connection(), _Transport()
    connection.connection_made(transport)
    connection.send(b"", flight)
    for piece in pieces:
        connection.data_received(piece)
    if landed and landed[0] is None:
        assert transport.closed, "a connection that is not kept must be closed"
    if ending == "eof":
        connection.connection_lost(None)
    elif ending == "reset":
        connection.connection_lost(ConnectionResetError())
    elif flight.open:
        flight.broke("timeout", "late", 1 << 62)
    assert len(landed) == 1, "a request must land exactly once"
    flight.complete()
    return result, landed[0] is not None and landed[0].usable


def check_result(result: RequestResult, api: Api, stream: bool) -> None:
    """Check what must hold for every result, sound or failed."""
    times, counts = [at for at, _ in result.chunks], [n for _, n in result.chunks]
    assert times == sorted(times)
    assert all(a < b for a, b in pairwise(counts)), "a token counted twice"
    if result.error is not None:
        assert result.error.kind in KINDS
        assert len(result.error.message) <= 500
        return
    assert result.completion_tokens is not None
    assert 0 <= result.completion_tokens <= ASKED
    if stream and result.completion_tokens:
        assert counts[-1] == result.completion_tokens
        assert result.first_ns is not None
    if not stream:
        assert not counts
    if api == "generate" and result.output_ids is not None:
        assert len(result.output_ids) == result.completion_tokens


def told(result: RequestResult) -> tuple[Any, ...]:
    """Return all of a result that does not depend on when bytes came."""
    kind = result.error.kind if result.error else None
    counts = [n for _, n in result.chunks]
    return (
        kind, counts, result.completion_tokens, result.prompt_tokens, result.cached_tokens,
        result.spec_verify_ct, result.output_ids, result.text, result.finish_reason,
    )  # fmt: skip


def target_sse(raw: bytes) -> None:
    """Events do not depend on how they are cut, and are those of the standard; a limit holds."""
    wire, pieces = cut(raw)
    parser = SseParser()
    events = [e for p in pieces for e in parser.feed(p)] + parser.close()
    assert events == plain_events(wire)
    small = SseParser(limit=64)
    got: list[Event] = []
    try:
        for p in pieces:
            got += small.feed(p)
        got += small.close()
    except EventTooLargeError:
        pass
    else:
        assert got == events
    assert got == events[: len(got)]


def target_http(raw: bytes) -> None:
    """An answer ends as a sound result or with a named error, the same however it is cut."""
    if not raw:
        return
    mode = raw[0]
    api, stream = APIS[mode % 3], bool(mode & 4)
    ending = ENDINGS[(mode >> 3) % 3]
    wire, pieces = cut(raw[1:])
    result, _ = exchange(pieces, api, stream, ending)
    check_result(result, api, stream)
    whole, _ = exchange([wire] if wire else [], api, stream, ending)
    assert told(whole) == told(result)


TARGETS: dict[str, Callable[[bytes], None]] = {"sse": target_sse, "http": target_http}
