"""Server-sent events, without any I/O: bytes in, events out.

Follows the event-stream format of the HTML standard (https://html.spec.whatwg.org/multipage/server-sent-events.html):
lines end in LF, CRLF or CR; ``data`` lines of one event are joined by LF; a blank line ends an event; lines that
begin with a colon are comments. One thing differs: an event that lacks its blank line when the stream ends is
handed out by :meth:`SseParser.close` instead of being dropped, so that nothing a server sent is lost.
"""

from __future__ import annotations

from typing import NamedTuple

LINE_LIMIT = 16 << 20
_BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One event: its data, and the value of its ``event`` field (empty for the usual kind)."""

    data: bytes
    name: bytes = b""


class EventTooLargeError(ValueError):
    """A line, or the data of one event, is larger than the limit."""


class SseParser:
    """Turns pieces of a body, cut anywhere, into events.

    Args:
        limit: Most bytes of one line and of one event.
    """

    __slots__ = (
        "_clean",
        "_data",
        "_held",
        "_limit",
        "_name",
        "_parts",
        "_size",
        "_skip_lf",
        "_started",
    )

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._limit = limit
        self._parts: list[bytes] = []  # the line that has not ended yet
        self._size = 0
        self._data: list[bytes] = []  # data lines of the event that has not ended yet
        self._held = 0
        self._name = b""
        self._skip_lf = False  # a piece ended in CR: an LF at the start of the next belongs to it
        self._clean = True  # nothing of the above is pending
        self._started = False

    def feed(self, piece: bytes) -> list[Event]:
        """Take the next bytes and return the events that they complete.

        Raises:
            EventTooLargeError: beyond the limit; the parser must not be fed again.
        """
        # Nearly every packet of a decoding server is exactly this; four memchr-like scans and no loop.
        if (
            self._clean
            and piece.startswith(b"data: ")
            and piece.endswith(b"\n\n")
            and piece.find(b"\n") == len(piece) - 2
            and b"\r" not in piece
            and len(piece) <= self._limit
        ):
            self._started = True
            return [Event(piece[6:-2])]
        return self._feed(piece)

    def close(self) -> list[Event]:
        """Return what was pending when the stream ended: at most one event."""
        events: list[Event] = []
        if self._parts:
            self._line(b"".join(self._parts), events)
            self._parts.clear()
        self._end_of_event(events)
        return events

    def _feed(self, piece: bytes) -> list[Event]:
        if not piece:
            return []
        if self._skip_lf:
            self._skip_lf = False
            piece = piece.removeprefix(b"\n")
        if b"\r" in piece:
            self._skip_lf = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        events: list[Event] = []
        begin = 0
        while (end := piece.find(b"\n", begin)) >= 0:
            line = piece[begin:end]
            if self._parts:
                line = b"".join((*self._parts, line))
                self._parts.clear()
                self._size = 0
            self._line(line, events)
            begin = end + 1
        if begin < len(piece):
            self._parts.append(piece[begin:])
            self._size += len(piece) - begin
            if self._size > self._limit:
                raise EventTooLargeError(f"a line is larger than {self._limit} bytes")
        self._clean = not (self._parts or self._data or self._name or self._skip_lf)
        return events

    def _line(self, line: bytes, events: list[Event]) -> None:
        if not self._started:
            self._started = True
            line = line.removeprefix(_BOM)
        if not line:
            self._end_of_event(events)
            return
        field, _, value = line.partition(b":")
        if field == b"data":
            value = value.removeprefix(b" ")
            self._data.append(value)
            self._held += len(value) + 1
            if self._held > self._limit:
                raise EventTooLargeError(f"an event is larger than {self._limit} bytes")
        elif field == b"event":
            self._name = value.removeprefix(b" ")

    def _end_of_event(self, events: list[Event]) -> None:
        if self._data:
            events.append(Event(b"\n".join(self._data), self._name))
            self._data.clear()
            self._held = 0
        self._name = b""
