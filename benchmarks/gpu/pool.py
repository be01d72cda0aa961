"""Servers that start together and stay: on a large GPU most of a run's time is server starts, one after another.

Only one server gets requests at a time, so that each has the GPU to itself while it is timed; the others wait for
requests without touching it (``sleep-on-idle``). What they share is memory, so the rig's KV cache is capped.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kit.backends.base import Backend, ServerHandle
from kit.backends.process import ProcessBackend
from kit.errors import EngineError, KitError
from kit.scenarios import Rig, ServerCommand

# Two servers that look for free ports in the same millisecond take the same one.
STAGGER_S = 1.5
PORT_STEP = 7


def shared_gpu(rig: Rig, kv_tokens: int) -> Rig:
    """Return the rig with a KV cache of ``kv_tokens`` a server, so that several servers fit into one GPU."""
    args: dict[str, Any] = {
        **rig.server.args,
        "mem-fraction-static": 0.95,
        "max-total-tokens": kv_tokens,
        "sleep-on-idle": True,
    }
    return rig.model_copy(update={"server": rig.server.model_copy(update={"args": args})})


def with_port(command: ServerCommand, port: int) -> ServerCommand:
    """Return the command listening on ``port``."""
    argv = list(command.argv)
    argv[argv.index("--port") + 1] = str(port)
    return command.model_copy(update={"argv": argv})


class _Member:
    """One server of the pool, held open by a thread of its own."""

    def __init__(
        self, backend: Backend, command: ServerCommand, log: Path, timeout_s: float
    ) -> None:
        self.handle: ServerHandle | None = None
        self.error: KitError | None = None
        self.ready_s = 0.0
        self.log = log
        self._up = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(
            target=self._hold, args=(backend, command, timeout_s), daemon=True
        )
        self._thread.start()

    def _hold(self, backend: Backend, command: ServerCommand, timeout_s: float) -> None:
        begun = time.monotonic()
        try:
            with backend.serve(command, self.log, timeout_s, lambda _: None) as handle:
                self.handle, self.ready_s = handle, time.monotonic() - begun
                self._up.set()
                self._end.wait()
        except KitError as error:
            self.error = error
        finally:
            self._up.set()

    def get(self) -> ServerHandle:
        self._up.wait()
        if self.handle is None:
            raise self.error or EngineError("The server ended while it started.")
        return self.handle

    def stop(self) -> None:
        self._end.set()
        self._thread.join(60)


class Pool:
    """Named servers that run at the same time.

    Args:
        logs: Where their logs go.
        timeout_s: Seconds that a start may take.
    """

    def __init__(self, logs: Path, timeout_s: float) -> None:
        self._logs = logs
        self._timeout_s = timeout_s
        self._members: dict[str, _Member] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, backend: Backend, command: ServerCommand) -> None:
        """Start a server and return at once."""
        log = self._logs / f"{name}.log"
        self._members[name] = _Member(backend, command, log, self._timeout_s)
        time.sleep(STAGGER_S)

    def wait(self, say: Callable[[str], None] = lambda _: None) -> list[str]:
        """Wait for all; return the names of those that failed."""
        failed = []
        for name, member in self._members.items():
            try:
                member.get()
                say(f"{name} decodes after {member.ready_s:.0f} s")
            except KitError as error:
                failed.append(name)
                tail = getattr(error, "log_tail", "")
                say(f"{name} FAILED: {error.sentence} {error.remedy}\n{tail[-3000:]}")
        return failed

    def get(self, name: str) -> ServerHandle:
        """Return a server that decodes.

        Raises:
            KitError: it did not start.
        """
        return self._members[name].get()

    def log(self, name: str) -> Path:
        """Return where a server's output goes."""
        return self._members[name].log

    def stop(self) -> None:
        """End all of them, at the same time."""
        threads = [threading.Thread(target=m.stop) for m in self._members.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._members.clear()


class PoolBackend:
    """Hands a running server of the pool to the pipeline; the pool starts and ends it.

    Args:
        pool: The pool.
        prefix: A scenario's server is the member named prefix + scenario.
    """

    def __init__(self, pool: Pool, prefix: str = "", name: str = "process") -> None:
        self._pool = pool
        self._prefix = prefix
        self.name = name

    @contextlib.contextmanager
    def serve(
        self,
        command: ServerCommand,
        log: Path,
        timeout_s: float,  # noqa: ARG002 - the pool's own holds
        waiting: Callable[[float], None] = lambda _: None,  # noqa: ARG002
    ) -> Iterator[ServerHandle]:
        """See :meth:`kit.backends.base.Backend.serve`; the log is copied when the scenario is done."""
        name = self._prefix + command.scenario
        try:
            yield self._pool.get(name)
        finally:
            with contextlib.suppress(OSError):
                shutil.copyfile(self._pool.log(name), log)


def start_scenarios(
    pool: Pool, commands: Mapping[str, ServerCommand], first_port: int
) -> PoolBackend:
    """Start one process server a scenario; return the backend that hands them out."""
    for index, (name, command) in enumerate(commands.items()):
        port = first_port + PORT_STEP * index
        pool.start(name, ProcessBackend(port=port), with_port(command, port))
    return PoolBackend(pool)
