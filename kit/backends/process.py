"""Run the server as a process group on this host.

Stopping goes interrupt → terminate → kill, each with a named patience, and ends with a check that no process of
the group, nor any process that carries this server's mark in its environment, is left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from kit import known_issues
from kit.backends.base import wait_until_decoding
from kit.errors import EngineError, UserError
from kit.scenarios import ServerCommand

INTERRUPT_PATIENCE_S = 8.0
TERMINATE_PATIENCE_S = 5.0
KILL_PATIENCE_S = 5.0
TAIL_LINES = 30
MARK = "KIT_SERVER_ID"
# Secrets that a server needs but nobody may print.
SECRET_NAMES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def check_port_free(host: str, port: int) -> None:
    """Refuse a port that somebody else listens on, before minutes are spent on loading a model.

    Raises:
        UserError: the port is taken.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UserError(
                f"Port {port} on {host} is in use ({error.strerror}).",
                "Stop what listens there or choose another with --port.",
            ) from None


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a log, empty if there is none; reads at most 64 KiB."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - (1 << 16)))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def explain_death(log: Path, status: str) -> EngineError:
    """Return the error for a dead server: what its log says, and what that means if it is known."""
    end = tail(log)
    hits = known_issues.match(tail(log, 400).splitlines())
    if hits:
        issue = hits[0].issue
        return EngineError(f"The server {status}: {issue.cause}", issue.remedy, end)
    return EngineError(
        f"The server {status}.", f"The end of its log is shown; all of it is in {log}.", end
    )


def _marked(mark: str) -> list[psutil.Process]:
    """Return live processes that carry ``mark`` in their environment: children that left the group too."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


@contextlib.contextmanager
def interrupt_held_back() -> Iterator[None]:
    """Hold a Ctrl-C back until the block is done: between a process's birth and knowing it, it would be orphaned.

    The child is not affected: a handled signal is back at its default after exec.

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


class ProcessServer:
    """A server that runs as a process group of its own."""

    def __init__(self, child: subprocess.Popen[bytes], base_url: str, log: Path, mark: str) -> None:
        self.child = child
        self.base_url = base_url
        self.log: Path | None = log
        self._log = log
        self.mark = mark

    def alive(self) -> bool:
        """Return whether the server's first process still runs."""
        return self.child.poll() is None

    def why_dead(self) -> EngineError:
        """Return the error that explains a dead (or stuck) server."""
        code = self.child.poll()
        if code is None:
            return explain_death(self._log, "is running but does not answer")
        if code < 0:
            return explain_death(self._log, f"was ended by {signal.Signals(-code).name}")
        return explain_death(self._log, f"ended with exit code {code}")

    def details(self) -> dict[str, Any]:
        """Return the pid."""
        return {"pid": self.child.pid}

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.child.pid, number)

    def _left(self) -> list[psutil.Process]:
        self.child.poll()
        return _marked(self.mark)

    def _wait_gone(self, patience_s: float) -> bool:
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if not self._left():
                return True
            time.sleep(0.1)
        return not self._left()

    def stop(self) -> None:
        """End every process of the server. Safe to call twice; a second Ctrl-C goes straight to the kill.

        Raises:
            EngineError: a process survived the kill.
        """
        try:
            self._signal(signal.SIGINT)
            if self._wait_gone(INTERRUPT_PATIENCE_S):
                return
            self._signal(signal.SIGTERM)
            if self._wait_gone(TERMINATE_PATIENCE_S):
                return
        finally:
            self._kill_rest()

    def _kill_rest(self) -> None:
        self._signal(signal.SIGKILL)
        for process in self._left():
            with contextlib.suppress(psutil.Error):
                process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(KILL_PATIENCE_S)
        if not self._wait_gone(KILL_PATIENCE_S):
            left = ", ".join(str(p.pid) for p in self._left())
            raise EngineError(
                f"Processes of the server survived the kill: {left}.",
                f"End them by hand: kill -9 {left.replace(',', '')}",
            )


class ProcessBackend:
    """Serve with this Python's own SGLang.

    Args:
        python: The interpreter; the running one by default.
        host: Where the server listens.
        port: Its port.
        environ: The environment to start from; the running one by default.
    """

    name = "process"

    def __init__(
        self,
        *,
        python: str = sys.executable,
        host: str = "127.0.0.1",
        port: int = 30000,
        environ: dict[str, str] | None = None,
    ) -> None:
        self.python = python
        self.host = host
        self.port = port
        self._environ = dict(os.environ) if environ is None else environ

    def start(self, command: ServerCommand, log: Path) -> ProcessServer:
        """Start the server and return at once.

        Raises:
            UserError: the port is taken, or the log cannot be written.
        """
        check_port_free(self.host, self.port)
        mark = uuid.uuid4().hex
        env = {**self._environ, **command.env, MARK: mark}
        # Output must reach the log before a crash, not after.
        env["PYTHONUNBUFFERED"] = "1"
        if "PYTHONPATH" in command.env and self._environ.get("PYTHONPATH"):
            env["PYTHONPATH"] = os.pathsep.join(
                [command.env["PYTHONPATH"], self._environ["PYTHONPATH"]]
            )
        try:
            with log.open("ab") as out:
                child = subprocess.Popen(
                    [self.python, *command.argv],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=env,
                    start_new_session=True,
                )
        except OSError as error:
            raise UserError(
                f"The server cannot be started: {error.strerror or error} ({error.filename}).",
                "Check the interpreter and that the run folder can be written.",
            ) from None
        host = "127.0.0.1" if self.host == "0.0.0.0" else self.host
        return ProcessServer(child, f"http://{host}:{self.port}", log, mark)

    @contextlib.contextmanager
    def serve(
        self,
        command: ServerCommand,
        log: Path,
        timeout_s: float,
        waiting: Callable[[float], None] = lambda _: None,
    ) -> Iterator[ProcessServer]:
        """See :meth:`kit.backends.base.Backend.serve`."""
        server: ProcessServer | None = None
        try:
            with interrupt_held_back():
                server = self.start(command, log)
            wait_until_decoding(server, timeout_s, waiting)
            yield server
        finally:
            if server is not None:
                server.stop()
