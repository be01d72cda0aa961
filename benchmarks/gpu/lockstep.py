"""Runs that take turns: two pipelines in two threads, a pass of one and then the same pass of the other.

A drift of the machine then hits both sides of a ratio alike. Whoever is behind goes next; at a tie the order swaps
from pass to pass (A B, B A), so that neither is always first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from kit.records import FailureRecord, LaunchRecord, LevelRecord
from kit.schedule import Step

KINDS = ("start", "warm", "sweep")
Position = tuple[int, int, int, int, int]


class Turns:
    """Lets one run at a time go on, the one that is furthest behind.

    Args:
        runs: How many runs take part; each must call :meth:`leave` at its end.
    """

    def __init__(self, runs: int) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[int, Position] = {}
        self._left = set(range(runs))
        self._busy: int | None = None
        self._flip = 1

    def _next(self) -> int | None:
        if self._busy is not None or set(self._waiting) != self._left:
            return None
        behind = min(self._waiting.values())
        tied = [run for run, at in self._waiting.items() if at == behind]
        return min(tied, key=lambda run: run * self._flip)

    def ask(self, run: int, position: Position) -> None:
        """Block until it is this run's turn to take the step at ``position``."""
        with self._changed:
            if self._busy == run:
                self._busy = None
            self._waiting[run] = position
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._next() == run)
            if sum(at == position for at in self._waiting.values()) == 1:
                # The last one at this position: the other order next time.
                self._flip = -self._flip
            del self._waiting[run]
            self._busy = run
            self._changed.notify_all()

    def leave(self, run: int) -> None:
        """Take the run out; the others no longer wait for it."""
        with self._changed:
            if self._busy == run:
                self._busy = None
            self._left.discard(run)
            self._waiting.pop(run, None)
            self._changed.notify_all()


def in_turns(parts: Sequence[Callable[[Turns, int], None]]) -> None:
    """Run each part in a thread of its own until all are done; a part gets the turns and its number in them."""
    turns = Turns(len(parts))

    def go(run: int) -> None:
        try:
            parts[run](turns, run)
        finally:
            turns.leave(run)

    threads = [threading.Thread(target=go, args=(i,)) for i in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class TurnObserver:
    """A :class:`kit.measure.Observer` that waits for its turn before each step, and prints a line a pass."""

    def __init__(self, label: str, scenarios: Sequence[str], turns: Turns | None, run: int) -> None:
        self.label = label
        self.folder: Path | None = None
        self._scenarios = list(scenarios)
        self._turns = turns
        self._run = run

    def opened(self, folder: Path) -> None:
        """See the protocol."""
        self.folder = folder

    def starting(self, step: Step, left_s: float) -> None:  # noqa: ARG002 - the protocol's
        """Wait for the turn."""
        if self._turns is not None:
            at = (
                self._scenarios.index(step.scenario),
                KINDS.index(step.kind),
                # A warm-up goes level by level, a sweep sweep by sweep.
                step.level if step.kind == "warm" else step.sweep,
                step.sweep if step.kind == "warm" else step.level,
                step.launch,
            )
            self._turns.ask(self._run, at)

    def waiting(self, scenario: str, waited_s: float) -> None:
        """See the protocol."""

    def launched(self, record: LaunchRecord) -> None:
        """See the protocol."""
        self.note(
            f"{record.scenario} worker {record.proof.worker} patches {record.proof.patches_live} "
            f"{record.proof.problems or 'proven'}"
        )

    def passed(self, record: LevelRecord) -> None:
        """See the protocol."""
        accept = ""
        if record.accept_length:
            planned = record.planned_accept_length or 0
            accept = f" accept {record.accept_length:.3f} planned {planned:.3f}"
        self.note(
            f"{record.scenario} {record.phase} {record.sweep} C={record.level} {record.tok_s:.1f} tok/s "
            f"{record.wall_s:.2f} s{accept}{f' {record.failed} FAILED' if record.failed else ''}"
        )

    def failed(self, record: FailureRecord) -> None:
        """See the protocol."""
        self.note(f"FAILED {record.scenario}: {record.sentence}\n{record.log_tail[-3000:]}")

    def note(self, text: str) -> None:
        """See the protocol."""
        print(f"[{self.label}] {text}", flush=True)
