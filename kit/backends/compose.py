"""Run the server as a Compose service of its own project, and leave nothing behind.

The service is the one of the committed compose.yaml (with compose.cpu.yaml or compose.devices.yaml where they apply);
an override written for each launch gives it the measured command, the models, the port and a label. Up and down go
through the Compose plug-in, everything else through the Docker SDK.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import docker.errors

from kit import paths
from kit.backends import engine
from kit.backends.base import wait_until_decoding
from kit.backends.leftovers import owner
from kit.backends.process import check_port_free, reserve_port
from kit.backends.watch import Watch, read_state
from kit.compose.launch import (
    container_user,
    driver_folder,
    driver_libraries,
    gpu_nodes,
    has_toolkit,
    launch_override,
    model_mounts,
)
from kit.compose.render import image_name, lock_sha256, patch_ids
from kit.errors import EngineError, KitError, UserError
from kit.scenarios import ServerCommand
from kit.sglang_plugin import SWITCH

STOP_PATIENCE_S = 15
UP_TIMEOUT_S = 180


class ComposeServer:
    """A server in a container of its own project."""

    def __init__(
        self,
        backend: ComposeBackend,
        project: str,
        container: Any,
        files: list[Path],
        base_url: str,
        log: Path,
    ) -> None:
        self.project = project
        self.base_url = base_url
        self.log: Path | None = log
        self._log = log
        self._backend = backend
        self._container = container
        self._files = files
        self.watch = Watch(backend.client, container, project, log, backend.probe_devices)

    def alive(self) -> bool:
        """Return whether the container runs, kept its GPU, and lost no process to the memory limit."""
        return self.watch.trouble() is None

    def why_dead(self) -> EngineError:
        """Return the error that explains a dead (or stuck) server."""
        return self.watch.explain()

    def details(self) -> dict[str, Any]:
        """Return what the run record keeps: container, image with digest and labels, compose file."""
        image = self._backend.image_facts
        return {
            "project": self.project,
            "container": self._container.id[:12],
            "image": self._backend.image,
            "image_id": image["id"],
            "repo_digests": image["digests"],
            "labels": image["labels"],
            "compose_file": f"{self._log.stem}.compose.yaml",
            "gpu": self._backend.gpu,
        }

    def stop(self) -> list[str]:
        """Stop and remove everything of the project. A second Ctrl-C skips the patience, not the removal.

        Returns:
            What could not be removed, empty if nothing is left.

        Raises:
            KeyboardInterrupt: one came meanwhile; everything was removed first.
        """
        interrupt: KeyboardInterrupt | None = None
        left: list[str] = []
        try:
            self._stop_softly()
        except KeyboardInterrupt as error:
            interrupt = error
        for _ in range(5):
            try:
                left = self._backend.remove(self.project, self._files)
                self.watch.close()
                break
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt
        return left

    def _stop_softly(self) -> None:
        with contextlib.suppress(*engine.UNREACHABLE):
            if read_state(self._container).get("Running"):
                self._container.stop(timeout=STOP_PATIENCE_S)
        # What the server said last should be in the log before the container is gone.
        self.watch.drain()


class ComposeBackend:
    """Serve in a container.

    Args:
        port: On the host's loopback.
        image: Image instead of the flavour's own (``kit-sglang:…``).
        gpu: ``toolkit``, ``devices`` or ``none``; by default what the engine and this host have.
        overrides: Further compose files, the last word.
        memory: Memory limit of the container, such as ``8g``.
        host: The engine's address.
        probe_devices: Device nodes to look after during a run; the GPU's by default.
    """

    name = "compose"

    def __init__(
        self,
        *,
        port: int = 30000,
        image: str | None = None,
        gpu: str | None = None,
        overrides: Sequence[Path] = (),
        memory: str | None = None,
        host: str | None = None,
        probe_devices: Sequence[str] | None = None,
    ) -> None:
        self.port = port
        self.gpu = gpu or ""
        self.overrides = [Path(p).absolute() for p in overrides]
        self.memory = memory
        self.host = engine.endpoint() if host is None else host
        self.client: Any = None
        self.image = image or ""
        self.image_facts: dict[str, Any] = {}
        self.image_digest: str | None = None
        # Fields of the fingerprint that the image decides, not this host.
        self.software: dict[str, Any] = {}
        self.compose_version = ""
        self.probe_devices: list[str] = list(probe_devices or ())
        self._given_probe = probe_devices is not None

    def prepare(self, *, cpu: bool) -> None:
        """Look at engine, plug-in and image before anything is started; fills ``image_digest`` and ``gpu``.

        Raises:
            UserError: something is missing; the sentence says what, the remedy what to do.
        """
        self.compose_version = self.compose_version or engine.compose_version()
        if self.client is None:
            self.client = engine.connect(self.host)
        if cpu:
            self.gpu = "none"
        elif not self.gpu:
            self.gpu = "toolkit" if has_toolkit(self.client) or not gpu_nodes() else "devices"
        if not self._given_probe:
            self.probe_devices = [] if cpu else gpu_nodes()
        flavour = "cpu" if cpu else "cuda13"
        self.image = self.image or os.environ.get("KIT_IMAGE") or image_name(flavour)
        try:
            found = self.client.images.get(self.image)
        except docker.errors.ImageNotFound:
            raise UserError(
                f"The image {self.image} is not on this engine.",
                f"Build it with `kit image build {flavour}`.",
            ) from None
        self.image_facts = {
            "id": found.id,
            "digests": found.attrs.get("RepoDigests") or [],
            "labels": found.labels,
        }
        digests = self.image_facts["digests"]
        self.image_digest = digests[0].split("@")[-1] if digests else found.id
        self._check_current(found.labels, flavour)
        self.software = engine.software(self.client, found.id)

    def _check_current(self, labels: dict[str, str], flavour: str) -> None:
        root = paths.project_root()
        if "kit.lock.sha256" not in labels or not (root / "locks").is_dir():
            return
        want = {
            "kit.lock.sha256": lock_sha256(root, flavour),
            "kit.patches": ",".join(patch_ids(root)),
        }
        for key, value in want.items():
            if labels.get(key, "") not in ("", value):
                raise UserError(
                    f"The image {self.image} was built from other "
                    f"{'locks' if 'lock' in key else 'patches'} than this checkout has.",
                    f"Build it again with `kit image build {flavour}`.",
                )

    def close(self) -> None:
        """Close the connection to the engine."""
        if self.client is not None:
            self.client.close()
            self.client = None

    def _compose(
        self, project: str, files: Sequence[Path], *argv: str, profile: str = "*"
    ) -> subprocess.CompletedProcess[str]:
        root = paths.project_root()
        names = [word for path in files for word in ("--file", str(path))]
        command = ["docker", "compose", "--ansi", "never", "--project-directory", str(root)]
        env = {**os.environ, "DOCKER_HOST": self.host}
        if self.gpu == "devices":
            env.setdefault("NVIDIA_LIBRARIES", driver_folder())
        return subprocess.run(
            [*command, "--profile", profile, "--project-name", project, *names, *argv],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=env,
            timeout=UP_TIMEOUT_S,
            # A session of its own: Ctrl-C at the terminal is for the kit, which then cleans up in order.
            start_new_session=True,
        )

    def _files(self, override: Path) -> list[Path]:
        root = paths.project_root()
        extra = {"none": ["compose.cpu.yaml"], "devices": ["compose.devices.yaml"]}.get(
            self.gpu, []
        )
        return [*(root / name for name in ["compose.yaml", *extra]), override, *self.overrides]

    def _cache_volume(self) -> str:
        """Return the volume of compiled kernels of this image, made if it is not there. It outlives runs."""
        name = f"kit-jit-{self.image_facts['id'].removeprefix('sha256:')[:12]}"
        try:
            self.client.volumes.get(name)
        except docker.errors.NotFound:
            self.client.volumes.create(name, labels={"kit.cache": "jit"})
        return name

    def start(self, command: ServerCommand, log: Path, project: str) -> ComposeServer:
        """Start the server in a project of that name and return at once.

        Raises:
            UserError: the port is taken, something is missing, or Compose could not start it.
        """
        folders = model_mounts(command.argv)
        override = log.with_name(f"{log.stem}.override.yaml")
        override.write_text(
            launch_override(
                command,
                port=self.port,
                image=self.image,
                project=project,
                cache=self._cache_volume(),
                folders=folders,
                libraries=driver_libraries() if self.gpu == "devices" else (),
                devices=[d for d in gpu_nodes() if d != "/dev/nvidia0"]
                if self.gpu == "devices"
                else (),
                user=container_user(folders),
                memory=self.memory,
                labels={"kit.owner": owner(), "kit.run": log.parent.parent.name},
            ),
            encoding="utf-8",
        )
        files = self._files(override)
        # Of this service only: Compose makes the volumes of every service that a profile turns on, used or not.
        only = command.scenario
        resolved = self._checked(self._compose(project, files, "config", profile=only))
        log.with_name(f"{log.stem}.compose.yaml").write_text(resolved.stdout, encoding="utf-8")
        with self._guard(project, files):
            up = ["up", "--detach", "--no-deps", "--no-build", only]
            self._checked(self._compose(project, files, *up, profile=only))
            (container,) = self.client.containers.list(
                all=True, filters={"label": f"{engine.PROJECT_LABEL}={project}"}
            )
            log.touch()
            url = f"http://127.0.0.1:{self.port}"
            return ComposeServer(self, project, container, files, url, log)

    @contextlib.contextmanager
    def _guard(self, project: str, files: list[Path]) -> Iterator[None]:
        """Remove what was made if the block fails, whatever the reason."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(*engine.UNREACHABLE, KitError):
                self.remove(project, files)
            raise

    def _checked(self, done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
        if done.returncode == 0:
            return done
        known = engine.explain(done.stderr)
        if known is not None and "image" in known.sentence:
            raise UserError(f"The image {self.image} is not on this engine.", known.remedy)
        if known is not None:
            raise known
        last = [line for line in done.stderr.strip().splitlines() if line.strip()][-3:]
        raise UserError(f"Docker Compose could not start the server: {' '.join(last)}")

    def remove(self, project: str, files: Sequence[Path]) -> list[str]:
        """Remove the project's containers, anonymous volumes and networks.

        Returns:
            What is left, empty if nothing is.
        """
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            self._compose(project, files, "rm", "--force", "--stop", "--volumes")
            self._compose(project, files, "down", "--timeout", "1")
        try:
            return engine.sweep(self.client, project)
        except engine.UNREACHABLE:
            return [
                f"the engine does not answer; when it is back: docker compose -p {project} down"
            ]

    @contextlib.contextmanager
    def serve(
        self,
        command: ServerCommand,
        log: Path,
        timeout_s: float,
        waiting: Callable[[float], None] = lambda _: None,
    ) -> Iterator[ComposeServer]:
        """See :meth:`kit.backends.base.Backend.serve`.

        Raises:
            EngineError: also on leaving, if the container lost its GPU or a process to the memory limit without the
                caller noticing: what was measured then means nothing.
        """
        check_port_free("127.0.0.1", self.port)
        self.prepare(cpu=command.env.get(SWITCH) == "1")
        project = f"kit-{command.scenario}-{uuid.uuid4().hex[:8]}"
        with reserve_port(self.port), reaper(self.host, project):
            server = self.start(command, log, project)
            failed: BaseException | None = None
            try:
                wait_until_decoding(server, timeout_s, waiting)
                yield server
                if not server.alive():
                    raise server.why_dead()
            except BaseException as error:
                failed = error
                raise
            finally:
                left = server.stop()
                self._complain(left, failed)

    @staticmethod
    def _complain(left: list[str], failed: BaseException | None) -> None:
        if not left:
            return
        text = f"Left on the engine: {'; '.join(left)}."
        if isinstance(failed, EngineError):
            raise EngineError(
                failed.sentence, f"{failed.remedy} {text}".strip(), failed.log_tail
            ) from None
        if failed is None:
            raise EngineError("The server's containers could not be removed.", text)
        print(f"kit: {text}", file=sys.stderr)


@contextlib.contextmanager
def reaper(host: str, project: str) -> Iterator[None]:
    """Keep the process that removes ``project`` if this one is killed (:mod:`kit.backends.reaper`)."""
    child = subprocess.Popen(
        [sys.executable, "-m", "kit.backends.reaper", project],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "DOCKER_HOST": host},
        start_new_session=True,
    )
    try:
        yield
    finally:
        # A line: all is cleaned up.
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            child.communicate(b"done\n", timeout=30)
