"""``kit clean`` after a kit and its reaper were killed: its container and network go, nobody else's do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.backends import leftovers
from kit.backends.compose import ComposeBackend
from kit.image import Built
from tests.docker.conftest import STUB, everything
from tests.docker.test_faults import until

SLEEP = ["/opt/kit/venv/bin/python", "-c", "import time; time.sleep(600)"]


def kit(*words: str, runs: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "KIT_RUNS": str(runs)}
    return subprocess.run(
        [sys.executable, "-m", "kit", *words], env=env, capture_output=True, text=True, timeout=120
    )


def reapers(project: str) -> list[int]:
    """Return the processes that would remove a project."""
    wanted = ["-m", "kit.backends.reaper", project]
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode("utf-8", "replace").split("\0")
        except OSError:
            continue
        if words[1:4] == wanted:
            found.append(int(path.parent.name))
    return found


@pytest.fixture
def bystanders(client: Any, cpu_image: Built) -> Iterator[list[Any]]:
    """Containers that `kit clean` must not touch: somebody's own, and the one of a kit that lives."""
    living = {"kit.launch": "kit-baseline-0000beef", "kit.owner": leftovers.owner()}
    made = []
    try:
        for labels in ({}, {"kit.launch": "kit-baseline-0000dead"}, living):
            options = {"labels": labels, "entrypoint": SLEEP, "detach": True}
            name = f"kit-test-{uuid.uuid4().hex[:8]}"
            made.append(client.containers.run(cpu_image.name, name=name, **options))
        yield made
    finally:
        for container in made:
            container.remove(force=True, v=True)


def test_what_a_killed_kit_left_is_listed_and_removed_and_nothing_else(
    cpu_image: Built,
    stub_override: Path,
    free_port: int,
    tmp_path: Path,
    client: Any,
    bystanders: list[Any],
) -> None:
    ComposeBackend(port=free_port, image=cpu_image.name).prepare(cpu=True)
    before = everything(client)
    logs = tmp_path / "runs" / "20260101T000000Z-cpu" / "logs"
    logs.mkdir(parents=True)
    code = f"""
from pathlib import Path
import time
from kit.backends.compose import ComposeBackend
from kit.scenarios import ServerCommand
argv = ["/opt/kit/venv/bin/python", {STUB!r}, "{free_port}"]
command = ServerCommand(scenario="baseline", rig="cpu", argv=argv, env={{"SGLANG_USE_CPU_ENGINE": "1"}})
backend = ComposeBackend(port={free_port}, image={cpu_image.name!r}, overrides=[Path({str(stub_override)!r})])
with backend.serve(command, Path({str(logs / "baseline.log")!r}), 60) as server:
    print(server.project, flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        project = child.stdout.readline().strip()
        listed = kit("clean", "--dry-run", runs=tmp_path / "runs").stdout
        assert project not in listed, "its kit lives"
        # The one that would clean up goes first, as when the kernel kills everything of a user.
        (reaper,) = reapers(project)
        os.kill(reaper, signal.SIGKILL)
        child.kill()
    assert until(lambda: not reapers(project))
    after = everything(client)
    (container,) = after["containers"] - before["containers"]
    assert len(after["networks"] - before["networks"]) == 1

    listed = kit("clean", "--dry-run", runs=tmp_path / "runs").stdout
    lines = [line for line in listed.splitlines() if project in line]
    assert [line.split()[0] for line in lines] == ["container", "network"], listed
    assert all(line.endswith("of 20260101T000000Z-cpu") for line in lines), listed
    assert "(running)" in lines[0]
    for other in bystanders:
        assert other.name not in listed
    assert everything(client) == after, "--dry-run only lists"
    # Not at a terminal and without --yes nothing is removed either.
    assert "--yes" in kit("clean", runs=tmp_path / "runs").stderr
    assert client.containers.get(container).status == "running"

    done = kit("clean", "--yes", runs=tmp_path / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    assert everything(client) == before
    for other in bystanders:
        other.reload()
        assert other.status == "running"
    assert project not in kit("clean", "--dry-run", runs=tmp_path / "runs").stdout
