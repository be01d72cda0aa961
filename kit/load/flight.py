"""One request on its way: it joins what a connection brings with the reader of the answer."""

from __future__ import annotations

from collections.abc import Callable

from kit.load.connection import Connection
from kit.load.model import ErrorKind, RequestError, RequestResult
from kit.load.replies import Reply, ReplyError
from kit.load.sse import LINE_LIMIT, EventTooLargeError, SseParser

BODY_LIMIT = 64 << 20
ERROR_BODY = 2000

Landed = Callable[["Flight", "Connection | None"], None]


class Flight:
    """One request in flight.

    Args:
        reply: Reads the answer.
        stream: Server-sent events were asked for.
        zero_ns: The start of the level on the monotonic clock.
        landed: Called once when the request has ended; the flight must then be completed by :meth:`complete`.
    """

    __slots__ = (
        "_parts", "_size", "_sse", "_status", "_stream", "_zero", "connection", "landed", "open", "reply",
    )  # fmt: skip

    def __init__(self, reply: Reply, stream: bool, zero_ns: int, landed: Landed) -> None:
        self.reply = reply
        self.landed = landed
        self.open = True
        self.connection: Connection | None = None
        self._stream = stream
        self._zero = zero_ns
        self._status = 0
        self._sse: SseParser | None = None
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def result(self) -> RequestResult:
        """What is known so far."""
        return self.reply.result

    def head(self, status: int, event_stream: bool) -> bool:
        """The status and headers are there."""
        self._status = status
        if status == 200 and self._stream and event_stream:
            self._sse = SseParser(LINE_LIMIT)
        return True

    def body(self, piece: bytes, at_ns: int) -> bool:
        """Take a piece of the body; False ends the exchange."""
        if self._sse is None:
            if self._status != 200 and self._size >= ERROR_BODY:
                return True
            self._size += len(piece)
            if self._size > BODY_LIMIT:
                return self._fault(
                    "too-large", f"the answer is larger than {BODY_LIMIT} bytes", at_ns
                )
            self._parts.append(piece)
            return True
        if self.result.error is not None:
            return (
                True  # an error event came; read on to its end, so that the connection can be kept
            )
        try:
            for event in self._sse.feed(piece):
                self.reply.event(event, at_ns)
        except EventTooLargeError as error:
            return self._fault("too-large", str(error), at_ns)
        except ReplyError as error:
            if error.error.kind != "server-error":
                return self._fault(error.error.kind, error.error.message, at_ns)
            self.result.error = error.error
        return True

    def ended(self, at_ns: int, connection: Connection | None) -> None:
        """The answer is whole."""
        self._land(at_ns, connection)

    def broke(self, kind: ErrorKind, message: str, at_ns: int) -> None:
        """The answer ended before it was whole, or never began."""
        if self.result.error is None:
            self.result.error = RequestError(kind, message[:500])
        self._land(at_ns, None)

    def complete(self) -> None:
        """Read what need not be read while the clock matters: the body, or the last event."""
        result = self.result
        try:
            if self._sse is not None:
                if result.error is None:
                    for event in self._sse.close():
                        self.reply.event(event, result.end_ns + self._zero)
                    self.reply.finish()
            elif result.error is None:
                self._whole()
        except ReplyError as error:
            result.error = error.error
        self._parts.clear()
        self._sse = None

    def _whole(self) -> None:
        raw = b"".join(self._parts)
        if self._status != 200:
            shown = raw[:300].decode("utf-8", "replace")
            hint = " (redirects are not followed)" if 300 <= self._status < 400 else ""
            raise ReplyError("http-status", f"HTTP {self._status}{hint}: {shown}", self._status)
        if self._stream:
            # Errors come as plain JSON; an answer without a stream has no times to measure.
            self.reply.whole(raw)
            raise ReplyError("bad-http", "a stream was asked for, and a plain answer came")
        self.reply.whole(raw)

    def _fault(self, kind: ErrorKind, message: str, at_ns: int) -> bool:
        self.broke(kind, message, at_ns)
        return False

    def _land(self, at_ns: int, connection: Connection | None) -> None:
        if not self.open:
            return
        self.open = False
        self.connection = None
        self.result.end_ns = at_ns - self._zero
        self.landed(self, connection)
