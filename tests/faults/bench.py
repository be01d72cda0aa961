"""A scratch project with a tiny rig, and kits that run in it with the stub in the server's place."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from kit.backends import leftovers
from kit.planted import PairSpec, make_pair
from kit.records import RunData
from kit.runfolder import MANIFEST, read_run

ROOT = Path(__file__).resolve().parents[2]
# 2 warm passes of 2 levels of 4 requests: 1 to 16; then sweeps of 4 at C=1 (17 to 20), 4 at C=2 (21 to 24), …
WARM_END, FIRST_LEVEL_END = 16, 20
TINY = {
    "schema": 1,
    "name": "tiny",
    "title": "Stub",
    "match": {"gpu": None},
    "pair": {
        "kind": "planted",
        "hidden": 128,
        "layers": 3,
        "intermediate": 64,
        "heads": 2,
        "kv_heads": 1,
        "vocab": 256,
        "p": 0.75,
        "q": 0.6,
    },
    "max_running_requests": 8,
    "server": {"startup_timeout_s": 20, "args": {"disable-radix-cache": True}},
    "load": {
        "levels": [1, 2],
        "input_tokens": 8,
        "output_tokens": 16,
        "min_requests": 4,
        "requests_per_slot": 1,
        "request_timeout_s": 20,
    },
    "repetition": {"launches": 1, "sweeps": 2, "max_launches": 1, "max_warm_passes": 2},
}


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def until(what: Callable[[], Any], seconds: float = 30) -> Any:
    """Return the first true value of ``what``, its last value after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (value := what()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return value


@dataclass
class Kit:
    """One kit that runs or ran."""

    base: Path

    @property
    def pid(self) -> int:
        text = until(lambda: _text(self.base.with_suffix(".pid")).endswith("\n"))
        assert text, "the kit did not start"
        return int(_text(self.base.with_suffix(".pid")))

    @property
    def out(self) -> str:
        return _text(self.base.with_suffix(".out"))

    @property
    def err(self) -> str:
        return _text(self.base.with_suffix(".err"))

    def done(self) -> bool:
        return self.base.with_suffix(".rc").exists()

    def wait(self, seconds: float = 60) -> int:
        assert until(self.done, seconds), f"the kit hangs: {self.out}\n{self.err}"
        return int(_text(self.base.with_suffix(".rc")))

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def says(self, text: str, seconds: float = 30) -> None:
        assert until(lambda: text in self.out or self.done(), seconds), self.out + self.err


@dataclass(frozen=True)
class Gate:
    """Holds the stub's answers from one request on, so that a test acts at a known point of a run.

    Args:
        path: Made to open it.
        after: Requests that pass at once.
    """

    path: Path
    after: int

    def __post_init__(self) -> None:
        for path in (self.path, self._waits):
            path.unlink(missing_ok=True)

    @property
    def _waits(self) -> Path:
        return self.path.with_name(f"{self.path.name}.waits")

    @property
    def stub(self) -> str:
        """The stub's options."""
        return f"--gate {self.path} --gate-after {self.after}"

    def reached(self, kit: Kit) -> None:
        """Wait until a request waits."""
        assert until(lambda: self._waits.exists() or kit.done()), kit.out + kit.err
        assert self._waits.exists(), kit.out + kit.err

    def open(self) -> None:
        self.path.touch()


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


@dataclass
class Bench:
    """A scratch project. ``run`` starts a kit in it and waits, ``start`` only starts it."""

    folder: Path
    port: int = field(default_factory=free_port)
    _number: int = 0
    _forker: subprocess.Popen[str] | None = None

    def __post_init__(self) -> None:
        self.home = self.folder / "project"
        self.runs = self.folder / "runs"
        self.temp = self.folder / "temp"
        self.temp.mkdir(parents=True)
        shutil.copytree(ROOT / "scenarios", self.home / "scenarios")
        (self.home / "golden").mkdir()
        self.rig()
        self.stub = self.folder / "python"
        self.stub.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/tests/stub_server.py "$@"\n')
        self.stub.chmod(0o755)
        make_pair(PairSpec(**{k: v for k, v in TINY["pair"].items() if k != "kind"}), self.pair)  # type: ignore[attr-defined]
        self._forker = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.forker"],
            stdin=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    @property
    def pair(self) -> Path:
        return self.folder / "pairs" / "tiny"

    def close(self) -> None:
        assert self._forker is not None
        self._forker.communicate()

    def rig(self, **changes: dict[str, Any]) -> None:
        """Write the tiny rig, with changed keys of its sections."""
        data = {**TINY, **{k: {**TINY[k], **v} for k, v in changes.items()}}  # type: ignore[dict-item]
        path = self.home / "scenarios" / "rigs" / "tiny.yaml"
        path.write_text(yaml.safe_dump(data))

    def env(self, stub: str = "", **more: str) -> dict[str, str]:
        return {
            **os.environ,
            # The doctor writes nothing and would take most of so short a run: few instants would be left to kill at.
            "KIT_NO_DOCTOR": "1",
            "KIT_HOME": str(self.home),
            "KIT_RUNS": str(self.runs),
            "KIT_PAIRS": str(self.folder / "pairs"),
            "TMPDIR": str(self.temp),
            "STUB_PYTHON": str(self.stub),
            "STUB_ARGS": stub,
            "COLUMNS": "200",
            **more,
        }

    def start(self, *argv: str, stub: str = "", **env: str) -> Kit:
        self._number += 1
        base = self.folder / f"kit{self._number}"
        job = {
            "argv": argv,
            "env": self.env(stub, **env),
            "cwd": str(self.folder),
            "base": str(base),
        }
        assert self._forker is not None
        assert self._forker.stdin is not None
        self._forker.stdin.write(json.dumps(job) + "\n")
        self._forker.stdin.flush()
        return Kit(base)

    def reproduce(self, *more: str, stub: str = "", scenario: str = "baseline", **env: str) -> Kit:
        argv = ["reproduce", "--rig", "tiny", "-s", scenario, "--port", str(self.port)]
        return self.start(*argv, "--backend", "process", *more, stub=stub, **env)

    def gate(self, after: int) -> Gate:
        """Return a gate for the stub of the next run; the last one's is taken away."""
        return Gate(self.folder / "gate", after)

    def run(self, *argv: str, stub: str = "", **env: str) -> Kit:
        kit = self.start(*argv, stub=stub, **env)
        kit.wait()
        return kit

    def folders(self) -> list[Path]:
        return sorted(p for p in self.runs.glob("*") if (p / MANIFEST).is_file())

    def latest(self) -> Path:
        return self.folders()[-1]

    def data(self) -> RunData:
        return read_run(self.latest())

    def verdict(self) -> dict[str, Any] | None:
        path = self.latest() / "verdict.json" if self.folders() else Path("none")
        return json.loads(path.read_text()) if path.is_file() else None

    def clear(self) -> None:
        """Forget the runs so far."""
        shutil.rmtree(self.runs, ignore_errors=True)

    def servers(self) -> list[int]:
        """Return the processes of servers that kits of this project started."""
        mine = []
        for pid in leftovers._pids():
            env = leftovers.environment(pid)
            if leftovers.MARK in env and env.get("KIT_HOME") == str(self.home):
                mine.append(pid)
        return [pid for pid in mine if leftovers.is_running(pid)]

    def reapers(self) -> list[int]:
        """Return the reapers and kits of this project."""
        return [
            pid
            for pid in leftovers._pids()
            if leftovers.environment(pid).get("KIT_HOME") == str(self.home)
            and leftovers.is_running(pid)
        ]

    def left(self) -> list[str]:
        """Return what is left behind, a line each; waits until a reaper has done its work."""

        def look() -> list[str]:
            found = [f"process {pid}" for pid in self.servers()]
            found += [f"file {p}" for p in self.temp.iterdir()]
            found += [f"file {p}" for p in self.runs.rglob(".*.tmp")]
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", self.port))
                except OSError:
                    found.append(f"port {self.port}")
            return found

        until(lambda: not look() and not self.reapers(), 15)
        return look() + [f"reaper {pid}" for pid in self.reapers()]


def kill_all(kit: Kit) -> None:
    """Kill a kit as the kernel would: no warning, no clean-up."""
    kit.send(signal.SIGKILL)
    kit.wait()
