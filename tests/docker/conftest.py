"""A real Docker Engine: the CPU image built from the checkout, a stub for faults, and a look at what is left.

The base image is made with debootstrap where there is no registry (scripts/debian-base.sh), or named by
KIT_TEST_BASE_IMAGE; KIT_TEST_CPU_IMAGE names a CPU image that is there already. The CPU build of torch comes from this
host's package sources, as `make setup` gets it.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit import image, image_inputs
from kit.backends import engine
from kit.scenarios import ServerCommand

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
STUB = "/kit-stub.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.docker)


@pytest.fixture(scope="session")
def client() -> Iterator[Any]:
    client = engine.connect()
    yield client
    client.close()


def base_image() -> str:
    """Name a base, made first where it must be."""
    named = os.environ.get("KIT_TEST_BASE_IMAGE")
    if named:
        return named
    subprocess.run([str(ROOT / "scripts" / "debian-base.sh")], check=True)
    return "kit-debian:12"


def wheelhouse() -> Path:
    """The CPU build of torch for the base's Python, fetched once by pip with this host's own configuration."""
    folder = ROOT / ".cache" / "wheelhouse"
    if not list(folder.glob("torch-*cp311*.whl")):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as venv:
            # The kit's own environment has no pip, and a bare Debian has none either.
            subprocess.run(["python3", "-m", "venv", venv], check=True)
            flags = ["--no-deps", "--require-hashes", "--only-binary=:all:"]
            target = ["--python-version", "3.11", "--platform", "manylinux_2_28_x86_64"]
            lock = ["-r", str(ROOT / "locks" / "cpu-torch-py311.txt")]
            pip = [f"{venv}/bin/pip", "download", "--quiet", "--dest", str(folder)]
            subprocess.run([*pip, *flags, *target, *lock], check=True)
    return folder


@pytest.fixture(scope="session")
def cpu_image(client: Any) -> image.Built:
    """The CPU image of this checkout; BuildKit's cache makes a second build a matter of seconds."""
    named = os.environ.get("KIT_TEST_CPU_IMAGE")
    if named:
        found = client.images.get(named)
        return image.Built(named, found.id, found.attrs["Size"], 0.0, found.labels)
    with image_inputs.secret_file(image_inputs.index_url(os.environ)) as index:
        request = image.Request(
            flavour="cpu",
            base_image=base_image(),
            wheelhouse=wheelhouse(),
            ca=image_inputs.ca_bundle(os.environ),
            index_url_file=index,
            network="host",
            tag="kit-test:cpu",
        )
        return image.build(request)


@pytest.fixture(autouse=True)
def volumes_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes the volumes of compose.yaml is seen to, also where some of them exist already."""
    monkeypatch.setenv("KIT_VOLUMES", f"kit-test-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def stub_override(tmp_path: Path) -> Path:
    """A compose file that mounts the stub into the server."""
    path = tmp_path / "stub.yaml"
    path.write_text(f"services:\n  baseline:\n    volumes: ['{HERE / 'stub.py'}:{STUB}:ro']\n")
    return path


@pytest.fixture
def stub_command(free_port: int) -> Callable[..., ServerCommand]:
    def make(*words: str, python: str = "/opt/kit/venv/bin/python") -> ServerCommand:
        argv = [python, STUB, str(free_port), *words]
        env = {"SGLANG_USE_CPU_ENGINE": "1"}
        return ServerCommand(scenario="baseline", rig="cpu", argv=argv, env=env)

    return make


def everything(client: Any) -> dict[str, set[str]]:
    """What an engine holds, images and caches of compiled kernels apart."""
    return {
        "containers": {c.id for c in client.containers.list(all=True, ignore_removed=True)},
        "networks": {n.id for n in client.networks.list()},
        "volumes": {v.name for v in client.volumes.list() if not v.name.startswith("kit-jit-")},
    }


@pytest.fixture
def leaves_nothing(client: Any) -> Iterator[None]:
    before = everything(client)
    yield
    assert everything(client) == before
