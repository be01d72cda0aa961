"""Running the installers: a sign of life in long steps, the tool's last words when one fails."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HEARTBEAT_S = 15.0


def say(text: str) -> None:
    """Print a line at once (make's output is often a pipe)."""
    print(text, flush=True)


def error(text: str) -> None:
    """Print to stderr, behind what was already said."""
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)


class StepError(Exception):
    """An installer ended with an error.

    Args:
        command: What ran.
        code: Its exit status.
        tail: Its last lines.
    """

    def __init__(self, command: Sequence[str], code: int, tail: str) -> None:
        super().__init__(f"{Path(command[0]).name} ended with status {code}")
        self.tail = tail
        self.code = code

    @property
    def disk_full(self) -> bool:
        """Whether the installer ran out of space."""
        return "No space left on device" in self.tail or "os error 28" in self.tail


class Runner:
    """Runs commands with their output in a log file.

    Args:
        root: Working directory, the checkout.
        log: File that all output is appended to.
        environ: Environment of the commands.
        hold: File descriptors that the commands keep open. A file lock among them lasts until the
            command has ended, even where the set-up itself was killed.
    """

    def __init__(
        self, root: Path, log: Path, environ: Mapping[str, str], hold: tuple[int, ...] = ()
    ) -> None:
        self.root = root
        self.hold = hold
        self.log = log
        self.environ = dict(environ)

    def run(
        self, what: str, command: Sequence[str], extra: Mapping[str, str] | None = None
    ) -> float:
        """Run one command to its end.

        Args:
            what: Name of the step for the reader.
            command: Program and arguments.
            extra: Variables on top of the runner's environment.

        Returns:
            Seconds it took.

        Raises:
            StepError: it ended with another status than 0.
        """
        started = time.monotonic()
        # Only the command line is logged, not its environment: an index URL may hold a password.
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(command)}\n")
            log.flush()
            before = self.log.stat().st_size
            process = subprocess.Popen(
                list(command),
                cwd=self.root,
                env={**self.environ, **(extra or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=self.hold,
            )
            try:
                code = wait(process, what, started)
            except BaseException:
                stop(process)
                raise
        if code != 0:
            raise StepError(command, code, tail(self.log, before))
        return time.monotonic() - started


def wait(process: subprocess.Popen[bytes], what: str, started: float) -> int:
    """Wait for a child, saying every 15 seconds that it still runs."""
    while True:
        try:
            return process.wait(timeout=HEARTBEAT_S)
        except subprocess.TimeoutExpired:
            say(f"        … {what}, {time.monotonic() - started:.0f} s")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a child that an interrupt left running: ask, then kill."""
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def tail(log: Path, start: int, lines: int = 12) -> str:
    """Return the last lines of ``log`` behind byte ``start``."""
    with log.open("rb") as handle:
        handle.seek(start)
        text = handle.read().decode("utf-8", errors="replace")
    return "\n".join(text.splitlines()[-lines:])


def folder_size(path: Path) -> int:
    """Return the bytes that a folder occupies on disk, hard-linked files counted once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for base, _, names in os.walk(path):
        for name in names:
            status = (Path(base) / name).lstat()
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                total += status.st_blocks * 512
    return total
