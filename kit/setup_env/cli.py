"""Commands of the set-up, their messages and exit codes."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from kit.errors import UserError
from kit.setup_env import build
from kit.setup_env.console import Runner, StepError, error
from kit.setup_env.lockfiles import make_locks

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent.parent
USAGE = "usage: python3 -m kit.setup_env [setup | lock]"


def lock(root: Path) -> None:
    """Make every lock anew.

    Raises:
        UserError: the resolve failed.
    """
    site = build.Site(root)
    site.cache.mkdir(parents=True, exist_ok=True)
    runner = Runner(root, site.cache / "lock.log", os.environ)
    uv = build.prepare_uv(site, runner, os.environ, resolving=True)
    try:
        make_locks(root, uv.path, runner)
    except StepError as failed:
        sentence = f"The resolve failed:\n{failed.tail}\n"
        raise UserError(sentence, "Mend locks/*.in or pyproject.toml.") from None


def as_interrupt(*_: object) -> None:
    """Handle a signal like Ctrl-C."""
    raise KeyboardInterrupt


@contextlib.contextmanager
def ending_in_order() -> Iterator[None]:
    """Take a request to end like Ctrl-C, so that the installer that runs is ended too."""
    old = {
        number: signal.signal(number, as_interrupt) for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def run(arguments: list[str]) -> int:
    """Run one command.

    Returns:
        0 done, 2 something that the user can mend, 130 interrupted.
    """
    command = arguments[0] if arguments else "setup"
    if len(arguments) > 1 or command not in ("setup", "lock"):
        error(USAGE)
        return 2
    try:
        with ending_in_order():
            if command == "lock":
                lock(ROOT)
            else:
                build.set_up(ROOT, os.environ)
    except UserError as failed:
        error(f"{failed.sentence}\n{failed.remedy}" if failed.remedy else failed.sentence)
        return failed.exit_code
    except KeyboardInterrupt:
        error("Set-up interrupted. The next run starts it again; what was fetched is kept.")
        return 130
    except OSError as failed:
        where = f" ({failed.filename})" if failed.filename else ""
        error(f"Set-up failed: {failed.strerror or failed}{where}.\nMend that, then run it again.")
        return 2
    return 0
