"""Find what an earlier crash of the kit left, and remove it; never anything else.

Everything the kit starts carries a mark of its own with who started it (:func:`kit.backends.leftovers.owner`). Only
what carries such a mark, and whose kit is known to be gone, is an orphan. What a living kit uses, what another
machine or container may use, and what has no mark is never listed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.backends import leftovers
from kit.errors import UserError
from kit.runfolder import LOGS, MANIFEST, SAMPLES, is_being_written

OWNER_LABEL = "kit.owner"
LAUNCH_LABEL = "kit.launch"
RUN_NAME = re.compile(r"^\d{8}T\d{6}Z-[a-z0-9-]+$")
FRESH_S = 60.0
TEMPORARY = re.compile(r"^\.[a-z.]+\.(\d+)\.tmp$")


@dataclass(frozen=True)
class Orphan:
    """Something left behind.

    Attributes:
        what: process, container, network, folder or file.
        name: What it is, for a person.
        run: The run that it belongs to, empty if that is not known.
        remove: Removes it; returns why it could not, empty if it did.
    """

    what: str
    name: str
    run: str
    remove: Callable[[], str]


def _same_namespace(pid: int) -> bool:
    with contextlib.suppress(OSError):
        mine = Path("/proc/self/ns/pid").readlink()
        return Path(f"/proc/{pid}/ns/pid").readlink() == mine
    return False


def _end(mark: str) -> str:
    left = leftovers.end_server(mark)
    return f"processes {', '.join(map(str, left))} survived" if left else ""


def orphaned_processes() -> list[Orphan]:
    """Return the servers whose kit is gone: this user's, in this pid namespace."""
    servers: dict[str, list[int]] = {}
    runs: dict[str, str] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdigit():
            continue
        env = leftovers.environment(int(name))
        mark = env.get(leftovers.MARK, "")
        if (
            not leftovers.is_mark(mark)
            or leftovers.owner_state(env.get(leftovers.OWNER, "")) != "gone"
        ):
            continue
        if leftovers.is_running(int(name)) and _same_namespace(int(name)):
            servers.setdefault(mark, []).append(int(name))
            runs[mark] = env.get(leftovers.RUN, "")
    return [
        Orphan(
            "server",
            f"{len(pids)} process{'es'[: 2 * (len(pids) > 1)]} (pid {', '.join(map(str, sorted(pids)))})",
            runs[mark],
            lambda mark=mark: _end(mark),  # type: ignore[misc]
        )
        for mark, pids in servers.items()
    ]


def _removed(path: Path) -> str:
    try:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{error.strerror}"
    return ""


def orphaned_folders() -> list[Orphan]:
    """Return temporary folders of servers whose kit is gone and whose processes have ended."""
    found = []
    for folder in Path(tempfile.gettempdir()).glob(f"{leftovers.FOLDER_PREFIX}*"):
        note = folder / leftovers.OWNER_FILE
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            continue
        with contextlib.suppress(OSError):
            text = note.read_text(encoding="utf-8")
            if leftovers.owner_state(text) == "gone":
                found.append(
                    Orphan("folder", str(folder), "", lambda path=folder: _removed(path))  # type: ignore[misc]
                )
    return found


def _is_fresh(path: Path) -> bool:
    """Return whether something was changed in the last minute: its maker may be about to go on."""
    return time.time() - path.stat().st_mtime < FRESH_S


def _is_stillborn(path: Path) -> bool:
    """Return whether a run folder holds nothing but what its making left: no run.json, no record, no log."""
    names = {p.name for p in path.iterdir() if not TEMPORARY.match(p.name)}
    samples, logs = path / SAMPLES, path / LOGS
    return (
        MANIFEST not in names
        and names <= {SAMPLES, LOGS}
        and (not samples.exists() or samples.stat().st_size == 0)
        and (not logs.exists() or not any(logs.iterdir()))
        and not is_being_written(path)
        and not _is_fresh(path)
    )


def orphaned_files(runs: Path) -> list[Orphan]:
    """Return half-written files in run folders, and run folders in which nothing was ever written."""
    found = []
    if not runs.is_dir():
        return []
    for path in sorted(runs.iterdir()):
        if not RUN_NAME.match(path.name) or path.is_symlink() or not path.is_dir():
            continue
        with contextlib.suppress(OSError):
            if _is_stillborn(path):
                found.append(
                    Orphan("run folder", f"{path} (empty)", path.name, lambda p=path: _removed(p))  # type: ignore[misc]
                )
                continue
            for file in path.iterdir():
                match = TEMPORARY.match(file.name)
                if match and not leftovers.is_running(int(match[1])) and not _is_fresh(file):
                    found.append(
                        Orphan("file", str(file), path.name, lambda p=file: _removed(p))  # type: ignore[misc]
                    )
    return found


def _remove_object(thing: Any, **options: Any) -> str:
    import docker.errors

    try:
        thing.remove(**options)
    except docker.errors.NotFound:
        return ""
    except docker.errors.APIError as error:
        # 409: it is being removed already.
        return "" if error.status_code == 409 else str(error.explanation)
    return ""


def orphaned_containers(client: Any) -> list[Orphan]:
    """Return containers, with their networks, that a kit of this machine made which is gone.

    Args:
        client: A connection to the engine.
    """
    mine = {"label": [LAUNCH_LABEL, OWNER_LABEL]}
    found, projects = [], {}
    for container in client.containers.list(all=True, filters=mine, ignore_removed=True):
        labels = container.labels
        if leftovers.owner_state(labels.get(OWNER_LABEL, "")) != "gone":
            continue
        project = labels[LAUNCH_LABEL]
        projects[project] = labels.get("kit.run", "")
        found.append(
            Orphan(
                "container",
                f"{container.name} ({container.status})",
                projects[project],
                lambda c=container: _remove_object(c, force=True, v=True),  # type: ignore[misc]
            )
        )
    for project, run in projects.items():
        label = {"label": f"com.docker.compose.project={project}"}
        found += [
            Orphan("network", n.name, run, lambda n=n: _remove_object(n))  # type: ignore[misc]
            for n in client.networks.list(filters=label)
        ]
    return found


def find(runs: Path) -> tuple[list[Orphan], str]:
    """Return every orphan, and why containers were not looked at (empty if they were).

    Args:
        runs: The folder of run folders.
    """
    found = [*orphaned_processes(), *orphaned_folders(), *orphaned_files(runs)]
    try:
        from kit.backends.engine import UNREACHABLE, connect

        client = connect()
    except UserError as error:
        return found, error.sentence
    try:
        # Containers before networks: an engine refuses to remove a network in use.
        return [*found, *orphaned_containers(client)], ""
    except UNREACHABLE as error:
        return found, f"The Docker Engine went away: {str(error)[:200]}"
    finally:
        client.close()
