"""Timers that wake an event loop to the microsecond.

Both asyncio's and uvloop's own timers count whole milliseconds: too coarse to send on schedule, and useless for
measuring a lag of less than that. Linux has timers that are files; elsewhere the loop's own are used.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable

_NONBLOCK_CLOEXEC = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_ABSTIME = 1


class _Timespec(ctypes.Structure):
    _fields_ = (("sec", ctypes.c_long), ("nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


def _timespec(ns: int) -> _Timespec:
    return _Timespec(ns // 1_000_000_000, ns % 1_000_000_000)


class _TimerFile:
    """A Linux timer file on the monotonic clock, which ``time.perf_counter_ns`` reads too (timerfd_create(2))."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.timerfd_create(time.CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def set(self, at_ns: int, every_ns: int = 0) -> None:
        spec = _Itimerspec(_timespec(every_ns), _timespec(max(at_ns, 1)))
        if self._libc.timerfd_settime(self.fd, _ABSTIME, ctypes.byref(spec), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def expirations(self) -> int:
        try:
            return int.from_bytes(os.read(self.fd, 8), sys.byteorder)
        except BlockingIOError:
            return 0


class Alarm:
    """Calls back once at a moment of ``time.perf_counter_ns``; can be set again.

    Args:
        loop: The running loop.
        callback: Called in the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._file: _TimerFile | None = None
        self._handle: asyncio.TimerHandle | None = None
        if sys.platform == "linux":
            self._file = _TimerFile()
            loop.add_reader(self._file.fd, self._readable)

    def _readable(self) -> None:
        assert self._file is not None
        if self._file.expirations():
            self._callback()

    def at(self, when_ns: int) -> None:
        """Call back at ``when_ns``, at once if that is over."""
        if self._file is not None:
            self._file.set(when_ns)
        else:
            delay = max(0.0, (when_ns - time.perf_counter_ns()) * 1e-9)
            self._handle = self._loop.call_later(delay, self._callback)

    def close(self) -> None:
        """Never call back again."""
        if self._file is not None:
            self._loop.remove_reader(self._file.fd)
            os.close(self._file.fd)
            self._file = None
        if self._handle is not None:
            self._handle.cancel()


class Ticker:
    """Calls ``callback(due_ns)`` every ``every_ns`` with the moment at which each tick was due.

    After a blocked loop all the ticks that were missed are called back, so that a long block weighs what it
    lasted and not as one late tick.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, every_ns: int, callback: Callable[[int], None]
    ) -> None:
        self._every = every_ns
        self._callback = callback
        self._due = time.perf_counter_ns() + every_ns
        self._alarm = Alarm(loop, self._tick)
        self._alarm.at(self._due)

    def _tick(self) -> None:
        now = time.perf_counter_ns()
        while self._due <= now:
            self._callback(self._due)
            self._due += self._every
        with contextlib.suppress(OSError):
            self._alarm.at(self._due)

    def close(self) -> None:
        """Stop."""
        self._alarm.close()
