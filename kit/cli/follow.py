"""Show a server's log as it is written."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from kit.secrets import scrub_bytes
from kit.serverlog import BLOCK, Growth, size

PERIOD_S = 0.2


class _Reader:
    """Passes on the lines that a log grew by; secrets of the environment are masked, which takes whole lines."""

    def __init__(self, log: Path, show: Callable[[str], None]) -> None:
        self._growth = Growth(log, size(log))
        self._show = show
        self._rest = b""

    def read(self) -> None:
        while block := self._growth.read():
            *lines, self._rest = (self._rest + block).split(b"\n")
            for line in lines:
                self._say(line)
            if len(self._rest) > BLOCK:
                # A line without an end must not grow for ever.
                self.flush()

    def flush(self) -> None:
        if self._rest:
            self._say(self._rest)
            self._rest = b""

    def _say(self, line: bytes) -> None:
        self._show(scrub_bytes(line.rstrip(b"\r")).decode("utf-8", "replace"))


@contextlib.contextmanager
def shown(log: Path, show: Callable[[str], None]) -> Iterator[None]:
    """Show each line that ``log`` grows by while the block runs, the last ones on leaving it.

    What was there before is not shown. The file need not exist yet. ``show`` is called in another thread.
    """
    reader = _Reader(log, show)
    over = threading.Event()

    def follow() -> None:
        # What reads the lines may go away (`kit serve … | head`); the server is served all the same.
        with contextlib.suppress(OSError, ValueError):
            while not over.wait(PERIOD_S):
                reader.read()
            reader.read()
            reader.flush()

    thread = threading.Thread(target=follow, name="server log", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
