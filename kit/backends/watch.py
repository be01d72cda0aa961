"""Watch a container while it serves: its log into the run folder, its use of the machine, and what can go wrong."""

from __future__ import annotations

import contextlib
import json
import shlex
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import docker.errors

from kit.backends import engine
from kit.backends.process import explain_death, tail
from kit.errors import EngineError

SAMPLE_S = 2.0
# Opening a device starts a process in the container, so not more often than this.
PROBE_S = 15.0
DRAIN_S = 10.0
KILLED = 137
TERMINATED = 143
# An engine that shuts down ends its containers first and itself soon after.
ENGINE_END_S = 3.0


def read_state(container: Any) -> dict[str, Any]:
    """Return the container's state as the engine has it now; ``{}`` if the container is gone.

    Raises:
        OSError, docker.errors.DockerException, requests.RequestException: the engine does not answer.
    """
    try:
        state: dict[str, Any] = container.client.api.inspect_container(container.id)["State"]
    except docker.errors.NotFound:
        return {}
    return state


def probe_command(devices: Sequence[str]) -> list[str]:
    """Return a command that fails if a device node cannot be opened, naming it.

    A container loses its GPU when the engine's control group is rewritten (``systemctl daemon-reload``): processes keep
    what they have open, and every new one fails with "Failed to initialize NVML".
    """
    tests = [
        f"(: < {shlex.quote(d)}) 2>/dev/null || {{ echo {shlex.quote(d)}; exit 1; }}"
        for d in devices
    ]
    return ["sh", "-c", "; ".join(tests) or ":"]


class Watch:
    """Threads that follow one container.

    Args:
        client: The engine.
        container: The server's.
        project: Its Compose project.
        log: Where its output goes; samples go beside it, ``….stats.jsonl``.
        devices: Device nodes to try now and then.
    """

    def __init__(
        self, client: Any, container: Any, project: str, log: Path, devices: Sequence[str]
    ) -> None:
        self._container = container
        self._log = log
        self._devices = list(devices)
        self._end = threading.Event()
        self._gone = ""
        self._lost_device = ""
        self._out_of_memory = False
        self._limit_bytes = 0
        self._logs = container.logs(stream=True, follow=True)
        self._events = client.events(
            decode=True,
            filters={"label": f"{engine.PROJECT_LABEL}={project}", "type": "container"},
        )
        self._threads = [
            threading.Thread(target=run, name=f"kit-{run.__name__}", daemon=True)
            for run in (self._pump, self._listen, self._sample)
        ]
        for thread in self._threads:
            thread.start()

    def _pump(self) -> None:
        with contextlib.suppress(*engine.UNREACHABLE, ValueError), self._log.open("ab") as out:
            for chunk in self._logs:
                out.write(chunk)
                out.flush()

    def _listen(self) -> None:
        with contextlib.suppress(*engine.UNREACHABLE, ValueError):
            for event in self._events:
                if event.get("Action") == "oom":
                    self._out_of_memory = True

    def _sample(self) -> None:
        probed = time.monotonic()
        path = self._log.with_name(f"{self._log.stem}.stats.jsonl")
        with path.open("a", encoding="utf-8") as out:
            while not self._end.wait(SAMPLE_S):
                with contextlib.suppress(*engine.UNREACHABLE, KeyError, ValueError):
                    out.write(json.dumps(self._stats()) + "\n")
                    out.flush()
                    if self._devices and time.monotonic() - probed >= PROBE_S:
                        probed = time.monotonic()
                        self._probe()

    def _stats(self) -> dict[str, float]:
        """Return one sample: seconds of CPU since the start, bytes of memory, its limit, processes."""
        raw = self._container.stats(stream=False, one_shot=True)
        self._limit_bytes = int(raw["memory_stats"]["limit"])
        return {
            "t": time.time(),
            "cpu_s": raw["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9,
            "memory_bytes": raw["memory_stats"]["usage"],
            "memory_limit_bytes": raw["memory_stats"]["limit"],
            "pids": raw.get("pids_stats", {}).get("current", 0),
        }

    def _probe(self) -> None:
        code, output = self._container.exec_run(probe_command(self._devices))
        if code == 1:
            self._lost_device = output.decode("utf-8", "replace").strip() or self._devices[0]

    def trouble(self) -> str | None:
        """Return what is wrong (``engine``, ``removed``, ``memory``, ``gpu``, ``exited``), None if nothing is."""
        if self._gone:
            return self._gone
        try:
            state = read_state(self._container)
        except engine.UNREACHABLE:
            self._gone = "engine"
            return self._gone
        if not state:
            self._gone = "removed"
            return self._gone
        if self._out_of_memory or state.get("OOMKilled"):
            self._out_of_memory = True
            return "memory"
        if not state.get("Running"):
            return "exited"
        return "gpu" if self._lost_device else None

    def explain(self) -> EngineError:
        """Return the error that says why the server is dead, or that it does not answer."""
        what = self.trouble()
        if what == "exited" and self._state().get("ExitCode") in (KILLED, TERMINATED):
            what = self._engine_ends() or what
        if what == "engine":
            return EngineError(
                "The Docker Engine stopped answering during the run.",
                "Start it again: `sudo systemctl start docker`; its own log says why it ended.",
                tail(self._log),
            )
        if what == "removed":
            return EngineError(
                "The server's container was removed by somebody else during the run.",
                "Run it again, and leave containers of projects named kit-… alone meanwhile.",
                tail(self._log),
            )
        state = self._state()
        code = state.get("ExitCode")
        if what == "memory":
            limit = f" of {self._limit_bytes / 2**30:.1f} GiB" if self._limit_bytes else ""
            ended = f", exit code {code}" if not state.get("Running") else ""
            return EngineError(
                f"The container ran out of memory: the kernel killed a process at its limit{limit} (OOMKilled{ended}).",
                "Raise the container's limit, or stop what else uses memory on this host.",
                tail(self._log),
            )
        if what == "gpu":
            return EngineError(
                f"The container lost its GPU during the run: {self._lost_device} cannot be opened any more.",
                "A `systemctl daemon-reload` on the host does that; run it again, and see docs/compose.md.",
                tail(self._log),
            )
        if what is None:
            return explain_death(self._log, "is running but does not answer")
        if code == KILLED:
            return explain_death(self._log, f"was killed from outside (SIGKILL, exit code {code})")
        return explain_death(self._log, f"ended with exit code {code}")

    def _engine_ends(self) -> str | None:
        deadline = time.monotonic() + ENGINE_END_S
        while time.monotonic() < deadline:
            if self.trouble() == "engine":
                return "engine"
            time.sleep(0.2)
        return None

    def _state(self) -> dict[str, Any]:
        with contextlib.suppress(*engine.UNREACHABLE):
            return read_state(self._container)
        return {}

    def drain(self) -> None:
        """Wait until the log of a stopped container is written."""
        self._threads[0].join(DRAIN_S)

    def close(self) -> None:
        """End the threads."""
        self._end.set()
        for stream in (self._logs, self._events):
            with contextlib.suppress(*engine.UNREACHABLE, ValueError, AttributeError):
                stream.close()
        for thread in self._threads:
            thread.join(DRAIN_S)
