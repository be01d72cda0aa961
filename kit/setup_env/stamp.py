"""The stamp in ``.venv``: what it was made from, so that a second set-up has nothing to do."""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

STAMP = "kit-setup.json"
# Raise it when the set-up itself changes in a way that makes old environments wrong.
FORMAT = 1
# The keys of [project] that an installed environment depends on.
PROJECT_KEYS = (
    "name",
    "version",
    "requires-python",
    "dependencies",
    "optional-dependencies",
    "scripts",
    "entry-points",
)


def project_digest(pyproject: Path) -> str:
    """Return the SHA-256 of the parts of pyproject.toml that an environment depends on.

    Tool settings (ruff, mypy, pytest) are left out: changing them needs no new environment.
    """
    data = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    project = data.get("project", {})
    parts = {key: project.get(key) for key in PROJECT_KEYS}
    parts["build-system"] = data.get("build-system")
    parts["setuptools"] = data.get("tool", {}).get("setuptools")
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def series_digest(folder: Path) -> str:
    """Return the SHA-256 of the patch series in ``folder``: which patches, in which order, with which content."""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.patch"), *folder.glob("series"), *folder.glob("*.json")]):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.name} {content}\n".encode())
    return digest.hexdigest()


def expected(root: Path, locks: Iterable[Path], python: str) -> dict[str, object]:
    """Return the stamp that an environment made now would carry.

    Args:
        root: The checkout. An environment knows its path, so a moved checkout needs a new one.
        locks: The lock files that are installed from.
        python: Version and base path of the interpreter.
    """
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in locks}
    return {
        "format": FORMAT,
        "root": str(root),
        "python": python,
        "locks": files,
        "project": project_digest(root / "pyproject.toml"),
        "patches": series_digest(root / "patches"),
    }


def is_fresh(venv: Path, want: dict[str, object]) -> bool:
    """Whether ``venv`` was completed from exactly ``want`` and still has its two commands."""
    if not all(os.access(venv / "bin" / name, os.X_OK) for name in ("python", "kit")):
        return False
    try:
        have = json.loads((venv / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(have, dict) and have.get("inputs") == want


def write(venv: Path, want: dict[str, object], notes: dict[str, object]) -> None:
    """Write the stamp: the last act of a set-up.

    Args:
        venv: The environment.
        want: From :func:`expected`.
        notes: For the reader, not compared: which build of torch, how long it took.
    """
    text = json.dumps({"inputs": want, "notes": notes}, indent=1, sort_keys=True)
    (venv / STAMP).write_text(text + "\n", encoding="utf-8")
