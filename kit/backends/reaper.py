"""Remove a server if the kit that started it is gone.

``python -m kit.backends.reaper PROJECT`` for a Compose project, ``… --server MARK`` for processes of this host.

The kit starts one beside each server and holds the other end of its standard input. A line on it means that the kit
has cleaned up by itself; its end without a line means that the kit was killed (kill -9, memory). Then the containers
and networks with the project's label are removed, or the processes with the mark ended and what they leave removed.
Only the standard library and the ``docker`` command.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from kit.backends.leftovers import end_server

LABEL = "com.docker.compose.project"
TRIES = 5


def _docker(*argv: str) -> list[str]:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(["docker", *argv], capture_output=True, text=True, timeout=120)
        if done.returncode == 0:
            return done.stdout.split()
    return []


def reap(project: str) -> None:
    """Remove the containers (with anonymous volumes) and networks of a project, and nothing else."""
    mine = ("--filter", f"label={LABEL}={project}")
    for _ in range(TRIES):
        containers = _docker("ps", "--all", "--quiet", *mine)
        networks = _docker("network", "ls", "--quiet", *mine)
        if not containers and not networks:
            return
        if containers:
            _docker("rm", "--force", "--volumes", *containers)
        if networks:
            _docker("network", "rm", *networks)
        time.sleep(0.5)


def main(argv: Sequence[str] | None = None) -> int:
    """Wait for the kit's word or its end."""
    *kind, name = sys.argv[1:] if argv is None else argv
    # Ctrl-C at a terminal reaches every process of the foreground; this one must outlive it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.readline() != "":
        return 0
    if kind == ["--server"]:
        end_server(name)
    else:
        # `docker compose up` may still be at work for the dead kit: look again after it had time to finish.
        reap(name)
        time.sleep(3)
        reap(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
