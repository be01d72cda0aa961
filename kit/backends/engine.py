"""The Docker Engine and the Compose plug-in: reaching them, and one clear sentence where that fails."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import socket
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import docker
import docker.errors
import requests

from kit.container import IMAGE_FACTS
from kit.errors import UserError

# Engine 20.10: the first with BuildKit's cache and secret mounts and with device requests in Compose's API.
MIN_API = (1, 41)
# The first Compose with both `!override` and `!reset`.
MIN_COMPOSE = (2, 24, 4)
PROJECT_LABEL = "com.docker.compose.project"
# An image's facts are a few hundred bytes; the engine sends chunks of at most 2 MiB.
FACTS_CHUNKS = 4
DEFAULT_HOST = "unix:///var/run/docker.sock"
# What the SDK raises where the engine is gone or going.
UNREACHABLE = (requests.exceptions.RequestException, docker.errors.DockerException, OSError)


@dataclass(frozen=True)
class Known:
    """A failure of the engine or of Compose that has a name: pattern, what it means, what to do."""

    pattern: str
    sentence: str
    remedy: str


KNOWN = (
    Known(
        r"could not select device driver \"?nvidia|unknown or invalid runtime name: nvidia",
        "The Docker Engine has no NVIDIA runtime, so a container cannot get the GPU.",
        "Install nvidia-container-toolkit and restart the engine, or use compose.devices.yaml (plain device nodes).",
    ),
    Known(
        r"error gathering device information while adding custom device \"?([^\s\"]+)",
        "A device node that the container should get does not exist on the engine's host: {0}.",
        "Is the NVIDIA driver loaded there? `nvidia-smi` on the host creates the nodes.",
    ),
    Known(
        r"nvidia-container-cli: (.{0,200})",
        "NVIDIA's container toolkit could not pass the GPU: {0}",
        "Does `nvidia-smi` work on the host? After a driver update the host must be restarted.",
    ),
    Known(
        r"port is already allocated|address already in use",
        "The port is in use on this host.",
        "Stop what listens there (`docker ps` shows containers) or choose another with --port.",
    ),
    Known(
        r"permission denied while trying to connect|dial unix [^:]+: connect: permission denied",
        "You may not use the Docker Engine's socket.",
        "Join the group docker (`sudo usermod -aG docker $USER`, then log in again) or use rootless Docker.",
    ),
    Known(
        r"[Cc]annot connect to the Docker daemon|error during connect|EOF$",
        "The Docker Engine does not answer.",
        "Start it: `sudo systemctl start docker`; scripts/docker-on-debian.sh does without systemd.",
    ),
    Known(
        r"error setting rlimit",
        "The engine may not lift the limit of locked memory (or another limit) that compose.yaml asks for.",
        "Run the engine as root with CAP_SYS_RESOURCE, or add an override with `ulimits: !reset null`.",
    ),
    Known(
        r"no space left on device",
        "The engine's disk is full.",
        "Free some space: `docker system df` shows what the engine holds.",
    ),
    Known(
        r"No such image|pull access denied|not found: manifest|failed to resolve reference|image .* not found",
        "The image is not on this engine.",
        "Build it with `kit image build`.",
    ),
)


def explain(text: str) -> UserError | None:
    """Return the error that an engine's or Compose's message means, None if it is no known one. Pure."""
    for known in KNOWN:
        match = re.search(known.pattern, text, re.M)
        if match:
            return UserError(known.sentence.format(*match.groups()), known.remedy)
    return None


def endpoint(environ: Mapping[str, str] | None = None) -> str:
    """Return the engine's address as the ``docker`` command would choose it: variable, else current context."""
    environ = os.environ if environ is None else environ
    if environ.get("DOCKER_HOST"):
        return environ["DOCKER_HOST"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            ["docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
        if done.stdout.strip():
            return done.stdout.strip()
    return DEFAULT_HOST


def version_tuple(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: ``2.26.1-4`` → (2, 26, 1)."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", text.strip())
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


def connect(host: str | None = None, timeout_s: float = 30) -> Any:
    """Return a client of the engine.

    Args:
        host: Its address; that of :func:`endpoint` by default.
        timeout_s: For each call.

    Raises:
        UserError: no engine, no permission on its socket, or it is too old.
    """
    host = endpoint() if host is None else host
    _knock(host)
    try:
        client = docker.DockerClient(base_url=host, timeout=timeout_s, version="auto")
        info = client.version()
    except UNREACHABLE:
        raise UserError(
            f"The Docker Engine at {host} does not answer.",
            "Start it: `sudo systemctl start docker`; scripts/docker-on-debian.sh does without systemd.",
        ) from None
    found = version_tuple(str(info.get("ApiVersion", "")))
    if found < MIN_API:
        client.close()
        raise UserError(
            f"Docker Engine {info.get('Version')} is too old (API {info.get('ApiVersion')}).",
            "Version 20.10 (API 1.41) or newer is needed.",
        )
    return client


def _knock(host: str) -> None:
    """Tell a missing socket and a forbidden one from an engine that does not answer."""
    if not host.startswith("unix://"):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.settimeout(10)
        try:
            door.connect(host.removeprefix("unix://"))
        except PermissionError:
            raise _known("permission denied while trying to connect") from None
        except FileNotFoundError:
            raise UserError(
                f"There is no Docker Engine at {host}.",
                "Install and start one, or choose --backend process.",
            ) from None
        except OSError:
            raise UserError(
                f"The Docker Engine at {host} does not answer.",
                "Start it: `sudo systemctl start docker`; scripts/docker-on-debian.sh does without systemd.",
            ) from None


def _known(text: str) -> UserError:
    error = explain(text)
    assert error is not None
    return error


def compose_version(docker_command: Sequence[str] = ("docker",)) -> str:
    """Return the version of the Compose plug-in.

    Raises:
        UserError: the ``docker`` command or the plug-in is missing, or too old.
    """
    remedy = "Install docker-compose-plugin (Docker's packages) or docker-compose (Debian 13)."
    try:
        done = subprocess.run(
            [*docker_command, "compose", "version", "--short"],
            capture_output=True,
            text=True,
            timeout=30,
        )
    except OSError:
        raise UserError("The `docker` command is not installed.", remedy) from None
    found = done.stdout.strip()
    if done.returncode or not version_tuple(found):
        raise UserError("Docker's Compose v2 plug-in is missing.", remedy)
    if version_tuple(found) < MIN_COMPOSE:
        needed = ".".join(map(str, MIN_COMPOSE))
        raise UserError(
            f"Docker Compose {found} is too old.", f"Version {needed} or newer is needed."
        )
    return found


def sweep(client: Any, project: str) -> list[str]:
    """Remove every container (with its anonymous volumes) and network of a Compose project, and nothing else.

    Returns:
        What could not be removed, a line each; empty if all is gone.
    """
    left: list[str] = []
    mine = {"label": f"{PROJECT_LABEL}={project}"}
    for container in client.containers.list(all=True, filters=mine, ignore_removed=True):
        try:
            container.remove(force=True, v=True)
        except docker.errors.NotFound:
            continue
        except docker.errors.APIError as error:
            # "removal already in progress": somebody else is at it, and it will be gone.
            if error.status_code != 409:
                left.append(f"container {container.name}: {error.explanation}")
    for network in client.networks.list(filters=mine):
        try:
            network.remove()
        except docker.errors.NotFound:
            continue
        except docker.errors.APIError as error:
            left.append(f"network {network.name}: {error.explanation}")
    return left


def software(client: Any, image_id: str) -> dict[str, Any]:
    """Return the fingerprint's fields that an image says of itself (its ``image.json``), empty if it says nothing.

    The file is copied out of a container that is never started.
    """
    # An image need not have a command of its own; this one is never run.
    made = client.containers.create(image_id, ["true"], network_disabled=True)
    try:
        chunks, _ = made.get_archive(str(IMAGE_FACTS))
        raw = io.BytesIO(b"".join(itertools.islice(chunks, FACTS_CHUNKS)))
        with tarfile.open(fileobj=raw) as archive:
            member = archive.extractfile(IMAGE_FACTS.name)
            facts = json.loads(member.read()) if member else {}
    except (docker.errors.APIError, tarfile.TarError, ValueError, KeyError):
        return {}
    finally:
        made.remove(force=True, v=True)
    if not isinstance(facts, dict) or not isinstance(facts.get("packages"), dict):
        return {}
    return {
        "python": str(facts.get("python")),
        "os": str(facts.get("os")),
        "packages": {str(k): str(v) for k, v in facts["packages"].items()},
    }
