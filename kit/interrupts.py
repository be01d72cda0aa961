"""Ctrl-C, SIGTERM and a terminal that closes end the kit in the same way: samples kept, servers stopped."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

TERMINATION = (signal.SIGTERM, signal.SIGHUP)
_ended_by: list[int] = []


def _as_interrupt(number: int, _frame: FrameType | None) -> None:
    _ended_by.append(number)
    # A shell starts background jobs with SIGINT ignored; then nobody would hear this.
    if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, signal.SIG_DFL):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)


def heed_termination() -> None:
    """Make SIGTERM and SIGHUP act like Ctrl-C, which every part of the kit cleans up after.

    One that is ignored already (``nohup``) stays ignored. Call from the main thread.
    """
    for number in TERMINATION:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _as_interrupt)


def exit_code() -> int:
    """Return the exit code of an interrupted kit as shells know it: 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP."""
    return 128 + (_ended_by[0] if _ended_by else signal.SIGINT)


@contextlib.contextmanager
def interrupt_held_back() -> Iterator[None]:
    """Hold Ctrl-C (and what acts like it) back until the block is done, and raise it then.

    For what must not be cut in two: a process's birth and knowing it, or the killing of what is left. A child is not
    affected: a handled signal is back at its default after exec.

    Raises:
        KeyboardInterrupt: one came meanwhile.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt
