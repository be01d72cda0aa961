"""The terminal during a run: what runs now, how long it still takes, one line a pass."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from rich.console import Console

from kit.records import FailureRecord, LaunchRecord, LevelRecord
from kit.report.live import LiveView, duration
from kit.schedule import Clock, Step

__all__ = ["ConsoleObserver", "duration", "planned_time"]


def planned_time(clock: Clock | None) -> str:
    """Return ``; about 6 min``: what a whole plan takes by estimate. Nothing for a run that goes on."""
    return "" if clock is None else f"; about {duration(clock.left_s())}"


class ConsoleObserver:
    """Prints a run as it goes: on a terminal one changing line a level and a bar, in a pipe one line a pass.

    Args:
        console: Where to print.
        launches: Server starts planned per scenario, for "launch 1/2".
        sweeps: Sweeps planned per launch.
        quiet: Print only failures.
    """

    def __init__(self, console: Console, launches: int, sweeps: int, quiet: bool = False) -> None:
        self.console = console
        self.launches = launches
        self.sweeps = sweeps
        self.quiet = quiet
        self.folder: Path | None = None
        self._live: LiveView | None = None
        self._now = ""

    def __enter__(self) -> ConsoleObserver:
        if self.console.is_terminal and not self.quiet:
            self._live = LiveView(self.console)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def _say(self, text: str) -> None:
        if not self.quiet:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Print one line of what is being done outside a step."""
        self._say(text)

    def phase(self, text: str) -> None:
        """Say how far a long phase is: on the changing line, with a bar where ``text`` counts (8 of 12)."""
        if self._live:
            self._live.now(text)
        else:
            self._say(text)

    def opened(self, folder: Path) -> None:
        """See :class:`kit.measure.Observer`."""
        self.folder = folder
        self._say(f"run folder {folder}")

    def starting(self, step: Step, left_s: float) -> None:
        """See :class:`kit.measure.Observer`."""
        what = {
            "start": "starting the server",
            "warm": f"warm-up {step.sweep + 1} at C={step.level}",
            "sweep": f"sweep {step.sweep + 1}/{self.sweeps} at C={step.level}",
        }[step.kind]
        launch = f"launch {step.launch + 1}/{max(self.launches, step.launch + 1)}"
        self._now = f"{step.scenario} · {launch} · {what}"
        if self._live:
            if step.kind == "start":
                self._live.settle()
            self._live.now(self._now, left_s)
        elif step.kind == "start":
            # Without a terminal there is no changing line: say it once a server.
            self._say(f"{self._now} · about {duration(left_s)} left")

    def waiting(self, scenario: str, waited_s: float) -> None:  # noqa: ARG002 - the protocol's
        """See :class:`kit.measure.Observer`."""
        if self._live:
            self._live.now(f"{self._now} · {duration(waited_s)}")

    def launched(self, record: LaunchRecord) -> None:
        """See :class:`kit.measure.Observer`."""
        proof = record.proof
        if proof.problems:
            self._say(f"{record.scenario}: NOT PROVEN: {'; '.join(proof.problems)}")
            return
        self._say(
            f"{record.scenario}: first token after {record.ready_s:.1f} s; worker {proof.worker} proven; "
            f"SGLang {proof.version}; patches live: {', '.join(proof.patches_live) or 'none'}"
        )

    def passed(self, record: LevelRecord) -> None:
        """See :class:`kit.measure.Observer`."""
        if self._live:
            self._live.add(record)
            return
        accept = ""
        if record.accept_length:
            accept = f"  accept length {record.accept_length:.2f}"
            if record.planned_accept_length:
                accept += f" (planned {record.planned_accept_length:.2f})"
        bad = f"  {record.failed} FAILED" if record.failed else ""
        what = "warm-up" if record.phase == "warmup" else f"sweep {record.sweep + 1}"
        self._say(
            f"  {record.scenario:<10} launch {record.launch + 1}  {what:<8} C={record.level:<4} "
            f"{record.tok_s:9.1f} tok/s  {record.requests} requests in {record.wall_s:.1f} s{accept}{bad}"
        )

    def failed(self, record: FailureRecord) -> None:
        """See :class:`kit.measure.Observer`."""
        where = "" if record.level is None else f" at C={record.level}"
        if record.log_tail:
            self.console.print(record.log_tail, markup=False, highlight=False)
        self.console.print(
            f"{record.scenario} ended early{where}: {record.sentence} {record.remedy}",
            markup=False,
            highlight=False,
        )
