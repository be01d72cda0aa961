"""What one launch adds to the project's compose files: the measured command, models, port, devices. Starts nothing."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kit.compose.render import DRIVER_FOLDER, DRIVER_LIBRARIES
from kit.errors import UserError
from kit.scenarios import ServerCommand

# Set by the image itself: the paths of this host mean nothing in a container.
HOST_ONLY = frozenset({"PYTHONPATH"})
MODEL_FLAGS = ("--model-path", "--speculative-draft-model-path")


def gpu_nodes() -> list[str]:
    """Return the NVIDIA device nodes of this host that a container needs, empty without a driver."""
    named = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
    found = sorted(p for p in Path("/dev").glob("nvidia[0-9]*"))
    return [str(p) for p in [*found, *(Path("/dev") / n for n in named)] if p.exists()]


def has_toolkit(client: Any) -> bool:
    """Return whether the engine can pass GPUs by itself (NVIDIA's container toolkit)."""
    runtimes = client.info().get("Runtimes") or {}
    return "nvidia" in runtimes or shutil.which("nvidia-container-runtime-hook") is not None


def model_mounts(argv: Sequence[str]) -> list[str]:
    """Return the folders that a server's command reads, each to be mounted at its own path, read-only.

    Hugging Face's cache links a snapshot's files to a folder of blobs beside it: such folders are included.

    Raises:
        UserError: a model's folder does not exist.
    """
    wanted: list[Path] = []
    for flag in MODEL_FLAGS:
        if flag in argv:
            folder = Path(argv[list(argv).index(flag) + 1]).absolute()
            if not folder.is_dir():
                raise UserError(f"There is no folder {folder}.", "Name the model's folder.")
            wanted.append(folder)
            for entry in folder.iterdir():
                if entry.is_symlink() and not entry.resolve().is_relative_to(folder.resolve()):
                    wanted.append(entry.resolve().parent)
    return [str(p) for p in dict.fromkeys(wanted)]


def container_user(folders: Sequence[str]) -> str | None:
    """Return the user that can read the models: None for the image's own, else the folders' owner.

    Raises:
        UserError: they are readable by root only; the container must not run as root.
    """
    for name in folders:
        for path in [Path(name), *Path(name).iterdir()]:
            about = path.stat()
            need = stat.S_IROTH | (stat.S_IXOTH if path.is_dir() else 0)
            if about.st_mode & need == need:
                continue
            if about.st_uid == 0:
                raise UserError(
                    f"Only root may read {path}, and the container does not run as root.",
                    f"Run `chmod -R a+rX {name}`.",
                )
            return f"{about.st_uid}:{about.st_gid}"
    return None


def inner_argv(argv: Sequence[str]) -> list[str]:
    """Return the command for inside a container: there the server must listen on every address; the published port
    is on the host's loopback only."""
    out = list(argv)
    if "--host" in out:
        out[out.index("--host") + 1] = "0.0.0.0"
    return out


def _text(value: Any) -> str:
    """Return ``value`` as JSON (which is YAML) with dollars doubled, so that Compose takes them as they are."""
    text = json.dumps(value, ensure_ascii=False)
    # Characters that JSON takes as they are and YAML does not.
    text = re.sub(
        r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]", lambda m: f"\\u{ord(m[0]):04x}", text
    )
    return text.replace("$", "$$")


def launch_override(
    command: ServerCommand,
    *,
    port: int,
    image: str,
    project: str,
    cache: str,
    folders: Sequence[str],
    devices: Sequence[str] = (),
    libraries: Sequence[str] = (),
    user: str | None = None,
    memory: str | None = None,
    labels: dict[str, str] | None = None,
) -> str:
    """Return the compose file of one launch. Pure.

    Args:
        command: The server's command; its environment may not hold a secret.
        port: On the host's loopback and inside.
        image: Name of the image.
        project: The launch's project, also a label.
        cache: Name of the volume of compiled kernels.
        folders: Mounted read-only at the same path.
        devices: Device nodes beyond the compose files' own.
        libraries: The driver's libraries on the host, where the engine does not mount them itself.
        user: ``uid:gid`` instead of the image's user.
        memory: Limit such as ``8g``.
        labels: Further labels: who made it, for which run.
    """
    environment = {k: v for k, v in command.env.items() if k not in HOST_ONLY}
    volumes: list[dict[str, Any]] = [{"type": "volume", "source": "jit", "target": "/cache"}]
    inside = [(f, f) for f in folders] + [(f, f"{DRIVER_FOLDER}/{Path(f).name}") for f in libraries]
    for source, target in inside:
        bind = {"create_host_path": False}
        volumes.append(
            {"type": "bind", "source": source, "target": target, "read_only": True, "bind": bind}
        )
    lines = [
        "services:",
        f"  {command.scenario}:",
        f"    image: {_text(image)}",
        f"    command: {_text(inner_argv(command.argv))}",
        f"    environment: {_text(environment)}",
        f"    ports: !override {_text([f'127.0.0.1:{port}:{port}'])}",
        f"    volumes: !override {_text(volumes)}",
        "    depends_on: !reset null",
        # The kit waits and looks by itself; a probe during a measurement would be load.
        "    healthcheck: {disable: true}",
        f"    labels: {_text({'kit.launch': project, **(labels or {})})}",
    ]
    if devices:
        lines.append(f"    devices: {_text(list(devices))}")
    if user:
        lines.append(f"    user: {_text(user)}")
    if memory:
        lines += [f"    mem_limit: {_text(memory)}", f"    memswap_limit: {_text(memory)}"]
    # The launch brings its models: without the service that would make some, Compose makes no volume for them.
    lines += ["  pair: {profiles: [pair]}"]
    lines += ["volumes:", f"  jit: !override {_text({'external': True, 'name': cache})}"]
    return "\n".join(lines) + "\n"


def driver_libraries() -> list[str]:
    """Return the driver's libraries of this host that a CUDA program loads."""
    found = [Path(driver_folder()) / name for name in DRIVER_LIBRARIES]
    return [str(path) for path in found if path.exists()]


def driver_folder() -> str:
    """Return the folder of the driver's libraries on this host, as the dynamic linker knows it."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, timeout=10)
        for line in done.stdout.splitlines():
            if "libcuda.so.1" in line and "x86-64" in line:
                return str(Path(line.split("=>")[1].strip()).parent)
    return "/usr/lib/x86_64-linux-gnu"
