"""One HTTP/1.1 connection, kept alive: a prepared request out, stamped body pieces in.

A protocol of its own on top of httptools (the parser of uvicorn, llhttp underneath): half the CPU time an event
of the aiohttp clients measured, and the time stamp is the first thing done when bytes arrive
(docs/client.md has figures).
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol, cast

import httptools

from kit.load.model import ErrorKind

HEAD_LIMIT = 64 << 10


class Sink(Protocol):
    """Receives one answer. Each call but the last may return False to say that it wants no more."""

    def head(self, status: int, event_stream: bool) -> bool:
        """The status line and headers are there."""
        ...

    def body(self, piece: bytes, at_ns: int) -> bool:
        """Bytes of the body, and when they arrived."""
        ...

    def ended(self, at_ns: int, connection: Connection | None) -> None:
        """The answer is whole; ``connection`` can be used again unless it is None."""
        ...

    def broke(self, kind: ErrorKind, message: str, at_ns: int) -> None:
        """The answer ended before it was whole."""
        ...


class Connection(asyncio.Protocol):
    """A connection that carries one exchange at a time.

    Attributes:
        idle_since_ns: When it last became free.
        received: Bytes read from it.
    """

    def __init__(self) -> None:
        self.idle_since_ns = 0
        self.received = 0
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._sink: Sink | None = None
        self._at = 0
        self._wanted = True
        self._begun = False
        self._head_done = False
        self._head_bytes = 0
        self._complete = False
        self._event_stream = False
        self._framed = False
        self._keep_alive = False

    @property
    def usable(self) -> bool:
        """It is open and carries nothing."""
        return (
            self._transport is not None and not self._transport.is_closing() and self._sink is None
        )

    def send(self, payload: bytes, sink: Sink) -> None:
        """Write a request; the answer goes to ``sink``."""
        assert self._transport is not None
        self._sink = sink
        self._parser = httptools.HttpResponseParser(self)
        self._wanted = True
        self._begun = self._head_done = self._complete = False
        self._event_stream = self._framed = self._keep_alive = False
        self._head_bytes = 0
        self._transport.write(payload)

    def abort(self) -> None:
        """Close at once; a sink that is waiting hears nothing more."""
        self._sink = None
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop; the time stamp comes before any parsing."""
        self._at = at = time.perf_counter_ns()
        sink, parser = self._sink, self._parser
        if sink is None or parser is None:
            # Nobody asked: whatever this is, it must not become the answer to the next request.
            self.abort()
            return
        self._begun = True
        self.received += len(data)
        if not self._head_done:
            self._head_bytes += len(data)
        try:
            parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._wanted and not self._complete:
                self._fail("bad-http", f"{type(error).__name__}: {error}")
                return
        if not self._wanted:
            self.abort()
        elif self._complete:
            self._end(at, self._keep_alive)
        elif not self._head_done and self._head_bytes > HEAD_LIMIT:
            self._fail("too-large", f"the headers are larger than {HEAD_LIMIT} bytes")

    def eof_received(self) -> bool:
        """Called by the event loop: close."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._at = time.perf_counter_ns()
        if self._sink is None:
            return
        if not self._begun:
            self._fail("reset", f"closed before an answer began: {exc or 'end of stream'}")
        elif exc is not None:
            self._fail("reset", f"{type(exc).__name__}: {exc}")
        elif self._head_done and not self._framed:
            # An answer without a length ends with its connection.
            self._end(self._at, False)
        else:
            self._fail("truncated", "the connection was closed within the answer")

    def _fail(self, kind: ErrorKind, message: str) -> None:
        sink, self._sink = self._sink, None
        if self._transport is not None:
            self._transport.abort()
        if sink is not None:
            sink.broke(kind, message, self._at)

    def _end(self, at_ns: int, keep_alive: bool) -> None:
        sink, self._sink = self._sink, None
        assert sink is not None
        if keep_alive and self.usable:
            self.idle_since_ns = at_ns
            sink.ended(at_ns, self)
        else:
            if self._transport is not None:
                self._transport.close()
            sink.ended(at_ns, None)

    # -- httptools' side

    def on_message_begin(self) -> None:
        """Called by the parser."""
        if self._complete:
            self._keep_alive = False  # bytes beyond the answer: the next one could not be trusted

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        if self._complete:
            return
        lower = name.lower()
        if lower == b"content-type":
            self._event_stream = value.strip().lower().startswith(b"text/event-stream")
        elif lower in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status < 200 or self._complete:
            return  # an interim answer; the real one follows
        self._head_done = True
        if self._sink is not None:
            self._wanted = self._sink.head(status, self._event_stream)

    def on_body(self, piece: bytes) -> None:
        """Called by the parser."""
        if self._wanted and self._sink is not None and not self._complete:
            self._wanted = self._sink.body(piece, self._at)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        if self._head_done and not self._complete:
            self._complete = True
            assert self._parser is not None
            self._keep_alive = self._parser.should_keep_alive()
