"""The part of a terminal that changes: one line a level of the server that runs, and a bar for the whole run."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from kit.records import LevelRecord

BAR_CELLS = 24
# "layer 8 of 12 made", "3/7 files": progress that a long phase tells in words.
_COUNT = re.compile(r"(\d+)\s*(?:of|/)\s*(\d+)")


def counted(text: str) -> float | None:
    """Return the share done that a sentence tells ("layer 8 of 12 made" → 2/3), None if it tells none."""
    found = _COUNT.search(text)
    if not found or int(found[2]) == 0:
        return None
    return min(1.0, int(found[1]) / int(found[2]))


@dataclass
class LevelLine:
    """What one level of the running server has shown so far."""

    scenario: str
    launch: int
    level: int
    warm: int = 0
    tok_s: list[float] = field(default_factory=list)
    accept: float | None = None
    planned: float | None = None
    failed: int = 0

    def add(self, record: LevelRecord) -> None:
        """Take up one pass."""
        self.failed += record.failed
        if record.phase == "warmup":
            self.warm += 1
            return
        self.tok_s.append(record.tok_s)
        self.accept, self.planned = record.accept_length, record.planned_accept_length

    def text(self) -> str:
        """Return the line."""
        shown = "".join(f"{value:9.1f}" for value in self.tok_s[-6:])
        if len(self.tok_s) > 6:
            shown = f"  …{shown}"
        if not self.tok_s:
            shown = f"   warm-up {self.warm}"
        line = f"  {self.scenario:<10} launch {self.launch + 1}  C={self.level:<4}{shown}"
        if self.tok_s:
            line += " tok/s"
        if self.accept:
            line += f"  accept {self.accept:.2f}"
            if self.planned:
                line += f" (planned {self.planned:.2f})"
        return line + (f"  {self.failed} FAILED" if self.failed else "")


class LiveView:
    """Lines that change in place. What is over is printed for good and scrolls away in order.

    Args:
        console: A terminal.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._lines: dict[int, LevelLine] = {}
        self._now = "starting"
        self._left: float | None = None
        self._share: float | None = None
        self._begun = self._told = time.monotonic()
        self._spinner = Spinner("dots")
        self._live = Live(
            console=console, get_renderable=self._draw, refresh_per_second=2, transient=True
        )

    def start(self) -> None:
        """Begin to draw."""
        self._live.start()

    def stop(self) -> None:
        """Print what is still only drawn, and end drawing."""
        self.settle()
        self._live.stop()

    def settle(self) -> None:
        """Print the levels of the server that is over for good."""
        for line in self._lines.values():
            self.console.print(Text(line.text(), no_wrap=True))
        self._lines.clear()

    def now(self, text: str, left_s: float | None = None) -> None:
        """Say what runs now and, if known, how many seconds the run still takes."""
        self._now = text
        self._share = counted(text) if left_s is None and self._left is None else None
        if left_s is not None:
            self._left = left_s
            self._told = time.monotonic()
        self._live.refresh()

    def add(self, record: LevelRecord) -> None:
        """Take up one pass of the running server."""
        line = self._lines.get(record.level)
        if line is None:
            line = LevelLine(record.scenario, record.launch, record.level)
            self._lines[record.level] = line
        line.add(record)
        self._live.refresh()

    def _done(self) -> tuple[float | None, float | None]:
        """Return the share of the run that is over and the seconds left, as far as known."""
        if self._share is not None or self._left is None:
            return self._share, None
        since = time.monotonic() - self._told
        # A step that takes longer than thought does not make the bar go back or reach its end.
        left = max(self._left - since, self._left * 0.02)
        gone = time.monotonic() - self._begun
        return gone / (gone + left), left

    def _draw(self) -> RenderableType:
        share, left = self._done()
        row = Table.grid(padding=(0, 1))
        cells: list[RenderableType] = [self._spinner, Text(self._now)]
        if share is not None:
            cells.append(ProgressBar(total=1.0, completed=share, width=BAR_CELLS))
        if left is not None:
            cells.append(Text(f"about {duration(left)} left"))
        for _ in cells:
            row.add_column(no_wrap=True)
        row.add_row(*cells)
        return Group(*(Text(line.text(), no_wrap=True) for line in self._lines.values()), row)


def duration(seconds: float) -> str:
    """Return ``45 s``, ``3 min 05 s`` or ``1 h 20 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
