"""Run the server as a process group on this host.

Stopping goes interrupt → terminate → kill, each with a named patience, and ends with a check that no process of
the group, nor any process that carries this server's mark in its environment, is left. Shared memory and temporary
files of the server go with it (:mod:`kit.backends.leftovers`); a second process does the same if this one is killed.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kit import known_issues
from kit.backends import leftovers
from kit.backends.base import wait_until_decoding
from kit.backends.leftovers import MARK
from kit.errors import EngineError, UserError
from kit.interrupts import interrupt_held_back
from kit.scenarios import ServerCommand
from kit.secrets import scrub, scrub_file

INTERRUPT_PATIENCE_S = 8.0
TERMINATE_PATIENCE_S = 5.0
KILL_PATIENCE_S = 5.0
TAIL_LINES = 30


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
    return scrub("\n".join(text.splitlines()[-lines:]))


def explain_death(
    log: Path, status: str, installed: Mapping[str, str] | None = None
) -> EngineError:
    """Return the error for a dead server: what its log says, and what that means if it is known.

    Args:
        log: The server's log.
        status: How it ended, the end of "The server …".
        installed: Versions where it ran, see :func:`kit.known_issues.match`.
    """
    end = tail(log)
    fatal = [issue for issue in known_issues.all_issues() if issue.fatal]
    hits = known_issues.match(tail(log, 400).splitlines(), fatal, installed)
    if hits:
        issue = hits[0].issue
        return EngineError(f"The server {status}: {issue.cause}", issue.advice, end)
    return EngineError(
        f"The server {status}.", f"The end of its log is shown; all of it is in {log}.", end
    )


@contextlib.contextmanager
def reserve_port(port: int) -> Iterator[None]:
    """Keep other kits off a port while a server is starting, running and stopping.

    A server listens only after it has loaded its model; until then another kit would find the port free, start a
    second server on it, and measure the first one. The reservation is a socket in Linux's abstract namespace: it has
    no file, and the kernel drops it when this process ends, however it ends.

    Raises:
        UserError: another kit holds the port.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as held:
        try:
            held.bind(f"\0kit-port-{port}")
        except OSError:
            raise UserError(
                f"Another kit runs a server on port {port}.",
                "Wait until it is done, or choose another port with --port.",
            ) from None
        yield


@contextlib.contextmanager
def reaper(mark: str) -> Iterator[None]:
    """Keep the process that ends the server with that mark if this one is killed (:mod:`kit.backends.reaper`)."""
    child: subprocess.Popen[bytes] | None = None
    try:
        with interrupt_held_back():
            child = subprocess.Popen(
                [sys.executable, "-m", "kit.backends.reaper", "--server", mark],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        yield
    finally:
        if child is not None:
            # A line: all is cleaned up.
            with interrupt_held_back(), contextlib.suppress(OSError, subprocess.SubprocessError):
                child.communicate(b"done\n", timeout=30)


class ProcessServer:
    """A server that runs as a process group of its own."""

    def __init__(self, child: subprocess.Popen[bytes], base_url: str, log: Path, mark: str) -> None:
        self.child = child
        self.base_url = base_url
        self.log: Path | None = log
        self._log = log
        self.mark = mark
        self._memory: set[str] = set()

    def alive(self) -> bool:
        """Return whether the server's first process still runs."""
        return self.child.poll() is None

    def why_dead(self) -> EngineError:
        """Return the error that explains a dead (or stuck) server."""
        code = self.child.poll()
        # The server runs in this Python.
        installed = known_issues.installed_versions()
        if code is None:
            return explain_death(self._log, "is running but does not answer", installed)
        if code < 0:
            return explain_death(self._log, f"was ended by {signal.Signals(-code).name}", installed)
        return explain_death(self._log, f"ended with exit code {code}", installed)

    def details(self) -> dict[str, Any]:
        """Return the pid."""
        return {"pid": self.child.pid}

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.child.pid, number)

    def _left(self) -> list[int]:
        self.child.poll()
        return leftovers.marked(self.mark)

    def check_listens(self, port: int) -> None:
        """Make sure that what answers on ``port`` is this server.

        Raises:
            EngineError: it is somebody else's.
        """
        self._memory |= leftovers.shared_memory(self._left())
        inodes = leftovers.listeners(port)
        if inodes and not leftovers.holds_socket(self._left(), inodes):
            raise EngineError(
                f"Another process answers on port {port}, not the server that was started.",
                "Stop what listens there or choose another with --port.",
                tail(self._log),
            )

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
            self._memory |= leftovers.shared_memory(self._left())
            self._signal(signal.SIGINT)
            if self._wait_gone(INTERRUPT_PATIENCE_S):
                return
            self._signal(signal.SIGTERM)
            if self._wait_gone(TERMINATE_PATIENCE_S):
                return
        finally:
            # However often somebody presses Ctrl-C: this is short and must be whole.
            with interrupt_held_back():
                self._kill_rest()
                leftovers.remove_shared_memory(self._memory)
                leftovers.remove_temporary_folder(self.mark)

    def _kill_rest(self) -> None:
        self._signal(signal.SIGKILL)
        leftovers.signal_all(self._left(), signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(KILL_PATIENCE_S)
        if not self._wait_gone(KILL_PATIENCE_S):
            left = ", ".join(map(str, self._left()))
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

    def _environment(self, command: ServerCommand, log: Path, mark: str) -> dict[str, str]:
        run = log.parent.parent.name if log.parent.name == "logs" else log.stem
        marks = {MARK: mark, leftovers.OWNER: leftovers.owner(), leftovers.RUN: run}
        # SGLang leaves about ten sockets and files a start in the temporary folder: they get one that goes with it.
        # Compiled kernels stay where PyTorch would have put them.
        cache = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"
        places = {"TMPDIR": str(leftovers.temporary_folder(mark))}
        env = {"TORCHINDUCTOR_CACHE_DIR": str(cache), **self._environ, **command.env}
        return {**env, **marks, **places}

    def start(self, command: ServerCommand, log: Path, mark: str | None = None) -> ProcessServer:
        """Start the server and return at once.

        Args:
            command: The server's command.
            log: Where its output goes.
            mark: Its mark, made up if it is not given.

        Raises:
            UserError: the port is taken, or the log cannot be written.
        """
        check_port_free(self.host, self.port)
        mark = mark or uuid.uuid4().hex
        env = self._environment(command, log, mark)
        # Output must reach the log before a crash, not after.
        env["PYTHONUNBUFFERED"] = "1"
        if "PYTHONPATH" in command.env and self._environ.get("PYTHONPATH"):
            env["PYTHONPATH"] = os.pathsep.join(
                [command.env["PYTHONPATH"], self._environ["PYTHONPATH"]]
            )
        try:
            leftovers.make_temporary_folder(mark)
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
            leftovers.remove_temporary_folder(mark)
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
        mark = uuid.uuid4().hex
        with reserve_port(self.port), reaper(mark):
            try:
                with interrupt_held_back():
                    server = self.start(command, log, mark)
                wait_until_decoding(server, timeout_s, waiting)
                server.check_listens(self.port)
                yield server
            finally:
                if server is not None:
                    try:
                        server.stop()
                    finally:
                        scrub_file(log)
