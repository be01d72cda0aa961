"""Render compose.yaml and its overrides from scenarios, rigs, locks and patches. Pure but for reading files.

The committed files must be what this gives; ``kit compose render --check`` and a test say so where they are not.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import jinja2

from kit import paths
from kit.errors import UserError
from kit.scenarios import (
    ModelPaths,
    PlantedPairConfig,
    Rig,
    Scenario,
    all_scenarios,
    load_rig,
    server_command,
)
from kit.sglang_plugin import SWITCH, cpu_server_args

SGLANG = "0.5.12.post1"
# The port inside a container; outside it is PORT.
PORT = 30000
GPU_RIG = "cuda"
CPU_RIG = "cpu"
BASES = {"cuda13": "nvidia/cuda:13.0.2-devel-ubuntu24.04", "cpu": "debian:12-slim"}
FILES = ("compose.yaml", "compose.devices.yaml", "compose.cpu.yaml")
DEVICES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
# What a CUDA program loads of the driver; the container toolkit would mount these.
DRIVER_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1")

# Where compose.devices.yaml puts them; it is on the library path there.
DRIVER_FOLDER = "/usr/local/nvidia/lib64"


@dataclass(frozen=True)
class Service:
    """A server as the templates see it.

    Attributes:
        name: The scenario's name.
        title: Its title.
        command: Arguments after the image's entry point, with Compose variables.
        environment: What the kit adds to the container's environment.
    """

    name: str
    title: str
    command: list[str]
    environment: dict[str, str]


def image_name(flavour: str) -> str:
    """Return the image's name and tag: ``kit-sglang:0.5.12.post1-cuda13``."""
    return f"kit-sglang:{SGLANG}-{flavour}"


def lock_sha256(root: Path, flavour: str) -> str:
    """Return the SHA-256 over the locks of a flavour, both Pythons: which one is used depends on the base image.

    ``cat locks/FLAVOUR-py3*.txt | sha256sum`` gives the same; the image build compares.
    """
    digest = hashlib.sha256()
    for path in sorted((root / "locks").glob(f"{flavour}-py3*.txt")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def patch_ids(root: Path) -> list[str]:
    """Return the ids of the patches that the series lists."""
    series = root / "patches" / "series"
    if not series.is_file():
        return []
    lines = (line.split("#")[0].strip() for line in series.read_text("utf-8").splitlines())
    return [line[:4] for line in lines if line]


def service(scenario: Scenario, rig: Rig) -> Service:
    """Return the service that serves ``scenario`` on ``rig``, with models from variables or the pair's volume."""
    if not isinstance(rig.pair, PlantedPairConfig):
        raise UserError(
            f"The rig {rig.name} has no planted pair to serve where no model is named.",
            "Render compose files from a rig with one.",
        )
    models = ModelPaths(
        target=f"${{MODEL_PATH:-/pairs/{rig.name}/target}}",
        draft=f"${{DRAFT_MODEL_PATH:-/pairs/{rig.name}/draft}}",
    )
    made = server_command(scenario, rig, models, host="0.0.0.0", port=PORT)
    argv, env = list(made.argv), dict(made.env)
    if rig.server.cpu_plugin:
        argv += cpu_server_args(argv)
        env[SWITCH] = "1"  # the image's entry point adds the rest, which depends on its packages
    else:
        where = argv.index("--tp-size") + 1
        argv[where] = f"${{TP:-{argv[where]}}}"
    return Service(scenario.name, scenario.title, argv, env)


def _quoted(value: object) -> str:
    """JSON is YAML; a dollar that is not a Compose variable would have to be doubled, and there is none here."""
    return json.dumps(value, ensure_ascii=False)


def _lines(argv: list[str]) -> list[str]:
    """Return a command in flow style: one flag with its values a line."""
    groups: list[list[str]] = []
    for word in argv:
        if not groups or word.startswith("-"):
            groups.append([])
        groups[-1].append(_quoted(word))
    return [", ".join(group) + "," for group in groups]


def environment() -> jinja2.Environment:
    """Return the Jinja2 environment of the templates; an unknown variable is an error."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    env.filters["quoted"] = _quoted
    env.filters["lines"] = _lines
    return env


def render_all(root: Path | None = None) -> dict[str, str]:
    """Return the text of every compose file by name.

    Args:
        root: The checkout, for locks and patches.
    """
    root = paths.project_root() if root is None else root
    scenarios = all_scenarios()
    env = environment()
    rigs = {"gpu": load_rig(GPU_RIG), "cpu": load_rig(CPU_RIG)}
    shared = {
        "port": PORT,
        "bases": BASES,
        "images": {flavour: image_name(flavour) for flavour in BASES},
        "locks": {flavour: lock_sha256(root, flavour) for flavour in BASES},
        "patches": ",".join(patch_ids(root)),
        "devices": DEVICES,
        "libraries": DRIVER_LIBRARIES,
        "driver_folder": DRIVER_FOLDER,
    }
    return {
        name: env.get_template(f"{name}.j2").render(
            **shared,
            rig=rigs["cpu" if name == "compose.cpu.yaml" else "gpu"],
            services=[
                service(s, rigs["cpu" if name == "compose.cpu.yaml" else "gpu"]) for s in scenarios
            ],
        )
        for name in FILES
    }


def stale(root: Path | None = None) -> list[str]:
    """Return the committed compose files that differ from what would be rendered."""
    root = paths.project_root() if root is None else root
    found = []
    for name, text in render_all(root).items():
        path = root / name
        if not path.is_file() or path.read_text("utf-8") != text:
            found.append(name)
    return found


def write_all(root: Path | None = None) -> list[str]:
    """Write the compose files that are out of step and return their names."""
    root = paths.project_root() if root is None else root
    changed = stale(root)
    rendered = render_all(root)
    for name in changed:
        (root / name).write_text(rendered[name], encoding="utf-8")
    return changed
