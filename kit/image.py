"""Build the images: gather a context of exactly what the Dockerfiles need, hand it to BuildKit, look at the result."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kit import paths
from kit.compose.render import BASES, image_name, lock_sha256, patch_ids
from kit.errors import UserError
from kit.image_inputs import PROXY_VARIABLES
from kit.reproduce import git_commit

FLAVOURS = tuple(BASES)
# Folders and files of the checkout that a build sees; .dockerignore allows the same.
CONTEXT = ("kit", "golden", "locks", "patches", "scenarios", "scripts/image", "wheelhouse")
FILES = ("pyproject.toml", "README.md", "LICENSE")
# How long a registry may take to name a base's digest.
LOOK_UP_S = 30
# What a build needs on the engine's disk, measured (docs/image.md), with some room: image, cache and unpacking.
NEEDED_BYTES = {"cuda13": 30 * 10**9, "cpu": 6 * 10**9}


@dataclass(frozen=True)
class Request:
    """What to build, and from what.

    Attributes:
        flavour: ``cuda13`` or ``cpu``.
        base_image: Base instead of the Dockerfile's.
        tag: Name of the image instead of the one that compose.yaml uses.
        ca: CA bundle, a build secret.
        wheelhouse: Folder whose wheels are added to the context.
        index_url_file: File with a package index's URL, a build secret.
        offline: Use no index.
        network: Network of the build's commands.
    """

    flavour: str = "cuda13"
    base_image: str | None = None
    tag: str | None = None
    ca: Path | None = None
    wheelhouse: Path | None = None
    index_url_file: Path | None = None
    offline: bool = False
    network: str | None = None

    @property
    def name(self) -> str:
        """The image's name."""
        return self.tag or image_name(self.flavour)


@dataclass(frozen=True)
class Built:
    """An image: name, id (``sha256:…``), bytes, seconds that the build took, labels."""

    name: str
    id: str
    size: int
    seconds: float
    labels: dict[str, str] = field(default_factory=dict)


def context_files(root: Path, wheelhouse: Path | None = None) -> Iterator[tuple[str, Path]]:
    """Yield (name in the context, file), sorted, without caches and links.

    Raises:
        UserError: the wheelhouse holds no wheel.
    """
    dockerfiles = [p.name for p in root.glob("Dockerfile.*")]
    for name in sorted([*FILES, *dockerfiles, *CONTEXT]):
        top = root / name
        files = sorted(top.rglob("*")) if top.is_dir() else [top]
        for path in files:
            if path.is_file() and not path.is_symlink() and "__pycache__" not in path.parts:
                yield path.relative_to(root).as_posix(), path
    if wheelhouse is not None:
        wheels = sorted(wheelhouse.glob("*.whl"))
        if not wheels:
            raise UserError(f"There are no wheels in {wheelhouse}.", "Name a folder of .whl files.")
        for path in wheels:
            yield f"wheelhouse/{path.name}", path


@dataclass(frozen=True)
class Base:
    """A base image: the name that the build is given, and its digest.

    Attributes:
        name: With a digest where a registry has one for it, so that the build takes what was looked up.
        digest: ``sha256:…`` of the manifest; of the image itself where it came from no registry; empty if unknown.
    """

    name: str
    digest: str = ""


def resolve_base(name: str) -> Base:
    """Return what ``name`` means now: on this engine, else in its registry, which is asked for the digest only."""
    if "@sha256:" in name:
        return Base(name, name.rpartition("@")[2])
    local = _asked("image", "inspect", "--format", "{{json .RepoDigests}} {{.Id}}", name)
    if local:
        digests, _, own = local.rpartition(" ")
        pulled = json.loads(digests) or []
        return Base(name, pulled[0].rpartition("@")[2] if pulled else own)
    digest = _asked("buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}", name)
    if re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        return Base(f"{name}@{digest}", digest)
    # The build itself says why it cannot be had.
    return Base(name)


def _asked(*argv: str) -> str:
    """Return what ``docker`` prints, empty if it fails or takes too long."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(["docker", *argv], capture_output=True, text=True, timeout=LOOK_UP_S)
        if done.returncode == 0:
            return done.stdout.strip()
    return ""


def command(request: Request, root: Path, base: Base | None = None) -> list[str]:
    """Return the build's command; the context comes on standard input. It holds no secret, only their files' paths.

    Args:
        request: What to build.
        root: The checkout.
        base: Its base, looked up; by default the request's name as it is.
    """
    labels = {
        "LOCK_SHA256": lock_sha256(root, request.flavour),
        "PATCH_IDS": ",".join(patch_ids(root)),
        "GIT_COMMIT": git_commit(root) or "",
    }
    argv = ["docker", "buildx", "build", "--load", "--progress", "plain", "--tag", request.name]
    argv += ["--file", f"Dockerfile.{request.flavour}"]
    if base is not None:
        labels.update(BASE_IMAGE=base.name, BASE_DIGEST=base.digest)
    elif request.base_image:
        labels["BASE_IMAGE"] = request.base_image
    if request.offline:
        labels["OFFLINE"] = "1"
    for key, value in labels.items():
        argv += ["--build-arg", f"{key}={value}"]
    if request.ca:
        argv += ["--secret", f"id=ca,src={request.ca.absolute()}"]
    if request.index_url_file:
        argv += ["--secret", f"id=index,src={request.index_url_file.absolute()}"]
    if request.network:
        argv += ["--network", request.network]
    for name in PROXY_VARIABLES:
        if os.environ.get(name):
            # Without a value: the builder reads it from the environment, and it is in no layer's history.
            argv += ["--build-arg", name]
    return [*argv, "-"]


def describe(request: Request, root: Path | None = None) -> list[str]:
    """Return the command and the context's size as text, building nothing."""
    root = paths.project_root() if root is None else root
    files = list(context_files(root, request.wheelhouse))
    size = sum(path.stat().st_size for _, path in files)
    return [
        shlex.join(command(request, root)),
        f"context: {len(files)} files, {size / 1e6:.1f} MB",
        *(f"  {name}" for name, _ in files),
    ]


def send_context(stream: io.BufferedIOBase, root: Path, wheelhouse: Path | None = None) -> None:
    """Write the context as a tar stream; owner, mode and time are fixed, so the layer cache depends on contents."""
    seen: set[str] = set()
    with tarfile.open(fileobj=stream, mode="w|") as archive:
        for name, path in context_files(root, wheelhouse):
            if name in seen:
                continue
            seen.add(name)
            info = tarfile.TarInfo(name)
            info.size = path.stat().st_size
            info.mode = 0o644
            with path.open("rb") as file:
                archive.addfile(info, file)


def check_tools() -> None:
    """Refuse to start without an engine, Buildx or room.

    Raises:
        UserError: one of them is missing.
    """
    from kit.backends.engine import connect

    connect().close()
    done = subprocess.run(["docker", "buildx", "version"], capture_output=True, text=True)
    if done.returncode:
        raise UserError(
            "Docker's Buildx plug-in is missing, and the images need BuildKit.",
            "Install docker-buildx-plugin (Docker's packages) or docker-buildx (Debian 13, Ubuntu).",
        )


def check_room(request: Request, where: Path) -> None:
    """Refuse to start a build that cannot fit.

    Args:
        request: What is to be built.
        where: The engine's data folder; nothing is checked where it cannot be seen (a remote engine).

    Raises:
        UserError: too little space.
    """
    if not where.is_dir():
        return
    need, free = NEEDED_BYTES[request.flavour], shutil.disk_usage(where).free
    if free < need:
        raise UserError(
            f"The build of {request.name} needs {need / 1e9:.0f} GB in {where}, and {free / 1e9:.1f} GB are free.",
            "Free some space: `docker system df` shows what the engine holds.",
        )


def build(request: Request, root: Path | None = None) -> Built:
    """Build an image and return what it is. The build's output goes to standard error as it comes.

    Raises:
        UserError: a prerequisite is missing, or the build failed (its own last lines say why).
        KeyboardInterrupt: as it came; the builder is ended first.
    """
    root = paths.project_root() if root is None else root
    check_tools()
    inspected = _docker("info", "--format", "{{.DockerRootDir}}")
    check_room(request, Path(inspected.strip()))
    base = resolve_base(request.base_image or BASES[request.flavour])
    begun = time.monotonic()
    # BuildKit writes to standard error; standard output stays for the result.
    child = subprocess.Popen(
        command(request, root, base), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert child.stdin is not None
    try:
        try:
            with child.stdin:
                send_context(child.stdin, root, request.wheelhouse)  # type: ignore[arg-type]
        except BrokenPipeError:
            pass  # the builder ended early; its exit code says so
        code = child.wait()
    except BaseException:
        child.terminate()
        child.wait()
        raise
    if code:
        raise UserError(
            f"The build of {request.name} failed (exit code {code}).",
            "The end of its output above says why; docs/image.md has the usual causes.",
        )
    seconds = time.monotonic() - begun
    facts = json.loads(_docker("image", "inspect", request.name))[0]
    return Built(
        name=request.name,
        id=facts["Id"],
        size=facts["Size"],
        seconds=seconds,
        labels=facts["Config"].get("Labels") or {},
    )


def _docker(*argv: str) -> str:
    done = subprocess.run(["docker", *argv], capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"`docker {argv[0]}` failed: {done.stderr.strip()}")
    return done.stdout
