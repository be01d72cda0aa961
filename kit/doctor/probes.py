"""How checks see the machine. Everything goes through :class:`Host`, so that a test can give another one."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kit import paths
from kit.backends import engine
from kit.errors import UserError
from kit.nvml import Gpu, Nvml, gpu_count, pids_are_the_hosts, visible_gpus
from kit.scenarios import ModelPaths, Rig, model_paths


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended. ``code`` is None if it was killed at its time-out."""

    code: int | None
    output: str


def run_command(argv: Sequence[str], timeout_s: float, env: Mapping[str, str]) -> Outcome:
    """Run a command in a process group of its own and kill the group at the time-out.

    Raises:
        OSError: it cannot be started.
    """
    child = subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(env),
        start_new_session=True,
    )
    timed_out = False
    try:
        output, _ = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        timed_out = True
        output = b""
    finally:
        # Children that outlive their parent hold the GPU, so the group ends whatever happened.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        if timed_out or child.poll() is None:
            output, _ = child.communicate()
    return Outcome(None if timed_out else child.returncode, output.decode("utf-8", "replace"))


def _connect() -> Any:
    return engine.connect(timeout_s=5)


@dataclass(frozen=True)
class Host:
    """The machine.

    Args:
        nvml: What answers for the GPUs; None without a driver.
        nvml_error: Why there is none.
        root: Where ``/proc``, ``/sys``, ``/dev`` and ``/etc`` are looked for.
        environ: Environment variables.
        run: Runs a command: argv, time-out in seconds, environment.
        docker: Connects to the engine; raises :class:`UserError`.
        compose: Returns Compose's version; raises :class:`UserError`.
        usage: Returns (total, used, free) bytes of a path's file system.
    """

    nvml: Nvml | None = None
    nvml_error: str = "not asked"
    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    run: Callable[[Sequence[str], float, Mapping[str, str]], Outcome] = run_command
    docker: Callable[[], Any] = _connect
    compose: Callable[[], str] = engine.compose_version
    usage: Callable[[Path], tuple[int, int, int]] = shutil.disk_usage

    def path(self, absolute: str) -> Path:
        """Return a path below the root."""
        return self.root / absolute.lstrip("/")

    def text(self, absolute: str) -> str | None:
        """Return a file's text without outer white space, None if it cannot be read."""
        try:
            return self.path(absolute).read_text("utf-8", "replace").strip()
        except OSError:
            return None

    def gpus(self) -> list[Gpu]:
        """Return every GPU of the driver."""
        return [Gpu(i) for i in range(gpu_count(self.nvml))] if self.nvml else []

    def own_pids(self) -> bool:
        """Return whether pids here are the host's, so that NVML's can be looked up."""
        return pids_are_the_hosts(self.root)


@dataclass(frozen=True)
class Job:
    """What is to be run on it.

    Args:
        rig: The rig; None: look at the machine only.
        backend: process, compose, attach or auto.
        port: Where the server will listen.
        runs: Parent of run folders.
    """

    rig: Rig | None = None
    backend: str = "auto"
    port: int = 30000
    runs: Path = Path("runs")

    @property
    def needs_gpu(self) -> bool:
        """Return whether the rig wants a GPU."""
        return self.rig is not None and self.rig.match.gpu is not None

    @property
    def wanted_gpus(self) -> int:
        """Return how many GPUs a server takes; 0 for a CPU rig."""
        return self.rig.tensor_parallel if self.rig and self.needs_gpu else 0

    @property
    def elsewhere(self) -> bool:
        """Return whether the server runs where this host's state says little: an attached one."""
        return self.backend == "attach"

    def models(self, environ: Mapping[str, str]) -> ModelPaths:
        """Return where the rig's models lie.

        Raises:
            UserError: no rig, or a model's path is missing.
        """
        if self.rig is None:
            raise UserError("No rig was named.", "Name one with --rig.")
        return model_paths(self.rig, paths.pairs_dir() / self.rig.name, environ)


def used_gpus(host: Host, job: Job) -> list[Gpu]:
    """Return the GPUs that a server of ``job`` would take: those visible, the first ``tensor_parallel`` of them."""
    if host.nvml is None:
        return []
    gpus = visible_gpus(host.nvml, host.environ)
    if job.rig is None:
        return gpus
    return gpus[: job.wanted_gpus]
