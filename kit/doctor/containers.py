"""Checks of the Docker Engine, Compose, and of how a container gets its GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kit.backends import engine
from kit.compose.render import image_name
from kit.doctor.model import Check, Seen, blocker, ok, unavailable, warning
from kit.doctor.probes import Host, Job
from kit.errors import UserError
from kit.units import GIB

# What the images take unpacked, and once more while they are built.
IMAGE_BYTES = {"cuda13": 40 * GIB, "cpu": 6 * GIB}
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")


@contextlib.contextmanager
def _client(host: Host) -> Iterator[Any]:
    client = host.docker()
    try:
        yield client
    finally:
        client.close()


def _missing(job: Job, error: UserError) -> Seen:
    if job.backend == "compose":
        return blocker(error.sentence.rstrip("."), error.remedy)
    return _untold(error)


def _untold(error: UserError) -> Seen:
    return unavailable(error.sentence.rstrip("."), error.remedy)


def _engine(host: Host, job: Job) -> Seen:
    try:
        with _client(host) as client:
            version = client.version()
    except UserError as error:
        return _missing(job, error)
    return ok(f"Docker Engine {version.get('Version')}, API {version.get('ApiVersion')}")


def _compose(host: Host, job: Job) -> Seen:
    try:
        version = host.compose()
    except UserError as error:
        return _missing(job, error)
    return ok(f"Compose {version}")


def ways_to_gpu(host: Host, info: dict[str, Any]) -> list[str]:
    """Return how a container could get an NVIDIA GPU: runtime, CDI, plain device nodes."""
    ways = []
    if "nvidia" in info.get("Runtimes", {}):
        ways.append("NVIDIA runtime")
    folders = [*(info.get("CDISpecDirs") or []), *CDI_FOLDERS]
    specs = {
        spec.name
        for folder in folders
        for spec in host.path(folder).glob("*")
        if spec.suffix in (".yaml", ".json") and "nvidia" in spec.name
    }
    if specs:
        ways.append(f"CDI ({', '.join(sorted(specs))})")
    nodes = [p for p in host.path("/dev").glob("nvidia[0-9]*") if p.name[6:].isdigit()]
    if nodes and host.path("/dev/nvidiactl").exists():
        ways.append(f"device nodes of {len(nodes)} GPUs (compose.devices.yaml)")
    return ways


def _gpu(host: Host, job: Job) -> Seen:
    if job.rig is not None and not job.needs_gpu:
        return unavailable(f"the rig {job.rig.name} uses no GPU")
    try:
        with _client(host) as client:
            ways = ways_to_gpu(host, client.info())
    except UserError as error:
        return _untold(error)
    if ways:
        return ok("; ".join(ways))
    text = "no NVIDIA runtime, no CDI specification, no NVIDIA device nodes"
    remedy = (
        "Install nvidia-container-toolkit, run `sudo nvidia-ctk runtime configure`, restart Docker."
    )
    if job.backend == "compose" and job.needs_gpu:
        return blocker(text, remedy)
    return unavailable(text, remedy)


def _disk(host: Host, job: Job) -> Seen:
    try:
        with _client(host) as client:
            root = str(client.info().get("DockerRootDir") or "/var/lib/docker")
            flavour = "cpu" if job.rig is not None and not job.needs_gpu else "cuda13"
            # As the compose backend chooses it.
            name = host.environ.get("KIT_IMAGE") or image_name(flavour)
            there = any(name in image.tags for image in client.images.list())
    except UserError as error:
        return _untold(error)
    except engine.UNREACHABLE as error:
        return unavailable(f"the engine does not tell its disk: {type(error).__name__}")
    try:
        free = host.usage(host.path(root))[2]
    except OSError:
        return unavailable(f"the engine's folder {root} is not visible here", "Look on its host.")
    text = f"{free / GIB:.1f} GiB free in {root}"
    if there:
        return ok(f"{text}; the {flavour} image is there")
    need = IMAGE_BYTES[flavour]
    if free < need:
        said = f"{text}; the {flavour} image takes about {need // GIB} GiB"
        remedy = "Free some: `docker system df` shows what is held; or move data-root."
        return blocker(said, remedy) if job.backend == "compose" else warning(said, remedy)
    return ok(text)


def _nodes(host: Host, job: Job) -> Seen:
    """Device nodes that this process itself could open: a container can see a driver and no device."""
    if job.rig is not None and not job.needs_gpu:
        return unavailable(f"the rig {job.rig.name} uses no GPU")
    nodes = sorted(host.path("/dev").glob("nvidia*"))
    names = [p.name for p in nodes if p.is_char_device() or p.is_file()]
    if not names:
        return unavailable("there are no NVIDIA device nodes here")
    closed = [p.name for p in nodes if not p.is_dir() and not _opens(p)]
    text = f"{len(names)} nodes: {', '.join(names[:6])}"
    if closed:
        return warning(
            f"{text}; not to be opened: {', '.join(closed)}",
            "In a container: start it again (a `systemctl daemon-reload` takes devices away); "
            "else join the group that owns them.",
        )
    if "nvidia-uvm" not in names:
        return warning(
            text, "CUDA needs /dev/nvidia-uvm: `sudo nvidia-modprobe -u -c 0` on the host."
        )
    return ok(text)


def _opens(path: Path) -> bool:
    try:
        with path.open("rb"):
            return True
    except OSError:
        return False


CHECKS = (
    Check("docker.engine", "The compose backend needs a Docker Engine 20.10 or newer.", _engine),
    Check("docker.compose", "The compose files use what Compose 2.24.4 brought.", _compose),
    Check(
        "docker.gpu",
        'Without a way to the GPU a container ends with "could not select device driver".',
        _gpu,
        "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html",
    ),
    Check("docker.disk", "Images with CUDA and PyTorch take tens of GiB.", _disk),
    Check(
        "docker.nodes",
        "A container loses its GPU when its device rules are rewritten.",
        _nodes,
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/48",
    ),
)
