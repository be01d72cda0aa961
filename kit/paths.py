"""Where the project's data lies: scenarios, rigs, golden files, patches, locks."""

from __future__ import annotations

import os
from pathlib import Path

from kit.errors import UserError


def project_root() -> Path:
    """Return the folder that holds ``scenarios/`` and ``golden/``.

    The environment variable ``KIT_HOME`` wins; otherwise it is the checkout that this package was installed
    from (``pip install -e``).

    Raises:
        UserError: neither holds a ``scenarios`` folder.
    """
    named = os.environ.get("KIT_HOME")
    root = Path(named) if named else Path(__file__).resolve().parent.parent
    if not (root / "scenarios").is_dir():
        raise UserError(
            f"No scenarios folder in {root}.",
            "Set KIT_HOME to a checkout of the kit, or install it with `pip install -e` from one.",
        )
    return root


def scenarios_dir() -> Path:
    """Return the folder of scenario files."""
    return project_root() / "scenarios"


def rigs_dir() -> Path:
    """Return the folder of rig files."""
    return scenarios_dir() / "rigs"


def golden_dir() -> Path:
    """Return the folder of golden files."""
    return project_root() / "golden"


def runs_dir() -> Path:
    """Return the folder that run folders are made in (``KIT_RUNS``, else ``runs/`` of the project)."""
    named = os.environ.get("KIT_RUNS")
    return Path(named) if named else project_root() / "runs"


def pairs_dir() -> Path:
    """Return the folder that planted pairs are made in (``KIT_PAIRS``, else ``pairs/`` of the project)."""
    named = os.environ.get("KIT_PAIRS")
    return Path(named) if named else project_root() / "pairs"
