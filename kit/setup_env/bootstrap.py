"""From a bare Python to a pinned uv: find any pip and let it check uv's hash."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from kit.errors import UserError
from kit.setup_env.console import Runner, StepError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NO_PIP = (
    "This Python has neither pip nor ensurepip.",
    "On Debian or Ubuntu: apt-get install python3-venv, then run the same command again.",
)
# In the folder $1, with apt's options behind it. `apt-get download` writes where it stands.
FROM_DEBIAN = """
cd "$1" && shift
apt-get "$@" download python3-pip-whl && dpkg-deb -x python3-pip-whl_*.deb x
"""


def works(command: list[str]) -> bool:
    """Whether a command can be started and ends well."""
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def find_pip(cache: Path, runner: Runner) -> list[str]:
    """Return the command prefix of a pip that works, without changing the host.

    Looked for in this order: the interpreter's own pip; ``ensurepip`` in a private environment;
    Debian's package ``python3-pip-whl``, unpacked into a private folder (which needs no root).

    Raises:
        UserError: there is none.
    """
    private = cache / "pip"
    python = private / "bin/python"
    for candidate in (sys.executable, str(python)):
        if works([candidate, "-m", "pip", "--version"]):
            return [candidate, "-m", "pip"]
    shutil.rmtree(private, ignore_errors=True)
    try:
        runner.run("pip from ensurepip", [sys.executable, "-m", "venv", str(private)])
        return [str(python), "-m", "pip"]
    except StepError:
        shutil.rmtree(private, ignore_errors=True)
    wheel = debian_pip_wheel(cache / "apt", runner)
    if wheel is None:
        raise UserError(*NO_PIP)
    # A wheel is a zip file with packages at its top: Python runs the pip inside it.
    return [sys.executable, f"{wheel}/pip"]


def debian_pip_wheel(folder: Path, runner: Runner) -> Path | None:
    """Fetch Debian's pip wheel with apt and return its path, or None where that cannot be.

    apt checks the archive's signature as for any install. Its lists are kept in ``folder`` too, so
    neither root nor an earlier ``apt-get update`` is needed.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return None
    lists = folder / "lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    (folder / "archives/partial").mkdir(parents=True, exist_ok=True)
    options = [f"-oDir::State::Lists={lists}", f"-oDir::Cache={folder}", "-oAPT::Sandbox::User="]
    try:
        runner.run("reading Debian's package lists", ["apt-get", *options, "update"])
        runner.run("pip from Debian", ["sh", "-c", FROM_DEBIAN, "sh", str(folder), *options])
    except StepError:
        return None
    found = sorted(folder.glob("x/usr/share/python-wheels/pip-*.whl"))
    return found[-1] if found else None


def ensure_uv(root: Path, cache: Path, runner: Runner) -> tuple[Path, list[str] | None]:
    """Return the pinned uv, installing it on first use.

    Args:
        root: The checkout, with ``locks/bootstrap.txt``.
        cache: The private folder that it is kept in, named by the lock's hash.
        runner: Runs pip.

    Returns:
        The uv executable, and the pip command if one had to be looked for.

    Raises:
        UserError: no pip, or pip could not fetch uv.
    """
    lock = root / "locks/bootstrap.txt"
    home = cache / f"uv-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    uv = home / "bin/uv"
    if works([str(uv), "--version"]):
        return uv, None
    pip = find_pip(cache, runner)
    fresh = cache / "uv.tmp"
    shutil.rmtree(fresh, ignore_errors=True)
    command = [*pip, "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    command += ["--no-compile", "--disable-pip-version-check", "--target", str(fresh)]
    try:
        runner.run("fetching uv", [*command, "-r", str(lock)])
    except StepError as failed:
        if failed.disk_full:
            raise UserError("The disk is full.", "Free some space, then run it again.") from None
        raise UserError(
            f"pip could not fetch uv:\n{failed.tail}\n",
            "Check this host's network, proxy and pip configuration, then run it again.",
        ) from None
    shutil.rmtree(home, ignore_errors=True)
    fresh.rename(home)
    return uv, pip


def pip_config(
    pip: list[str] | None, cache: Path, runner: Runner, environ: Mapping[str, str]
) -> str:
    """Return what ``pip config list`` prints, or nothing where there is no pip to ask."""
    try:
        command = pip if pip is not None else find_pip(cache, runner)
    except UserError:
        return ""
    done = subprocess.run(
        [*command, "config", "list"], capture_output=True, text=True, env=dict(environ), check=False
    )
    return done.stdout if done.returncode == 0 else ""
