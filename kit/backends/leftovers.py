"""Find and remove what a server leaves: processes, shared memory, temporary files. Standard library and /proc only.

Everything is found by marks that the kit itself put there, never by a name or a guess:

- a process carries ``KIT_SERVER_ID`` in its environment, and so do all its children, in whatever group or session;
- shared memory (``/dev/shm``) is what those processes have mapped and nobody else has;
- temporary files lie in the server's own ``TMPDIR``, named after the mark.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

MARK = "KIT_SERVER_ID"
OWNER = "KIT_OWNER"
RUN = "KIT_RUN_ID"
FOLDER_PREFIX = "kit-server-"
OWNER_FILE = "kit-owner"
SHM = "/dev/shm/"
ENVIRON_LIMIT = 1 << 20
State = Literal["alive", "gone", "unknown"]


def _pids() -> Iterator[int]:
    for name in os.listdir("/proc"):  # noqa: PTH208 - a thousand Path objects would be waste
        if name.isdigit():
            yield int(name)


def environment(pid: int) -> dict[str, str]:
    """Return a process's environment as it was at its start; empty if it is gone or somebody else's."""
    try:
        with Path(f"/proc/{pid}/environ").open("rb") as file:
            raw = file.read(ENVIRON_LIMIT)
    except OSError:
        return {}
    pairs = (piece.decode("utf-8", "replace").partition("=") for piece in raw.split(b"\0"))
    return {name: value for name, _, value in pairs if name}


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the command's name; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return []


def is_running(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    return _stat(pid)[:1] not in ([], ["Z"], ["X"])


def started(pid: int) -> str:
    """Return a process's start in clock ticks since boot, empty if it is gone: with the pid it is unique."""
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 else ""


def _read(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text("utf-8", "replace").strip()
    return ""


def _namespace(pid: int | Literal["self"]) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid").strip("pid:[]")  # noqa: PTH115
    return ""


def owner() -> str:
    """Return who this process is: machine, boot, pid namespace, pid and start, for :func:`owner_state`."""
    machine = hashlib.sha256(_read("/etc/machine-id").encode()).hexdigest()[:12]
    boot = _read("/proc/sys/kernel/random/boot_id")[:8]
    pid = os.getpid()
    return f"{machine}.{boot}.{_namespace('self')}.{pid}.{started(pid)}"


def owner_state(text: str) -> State:
    """Return whether the kit that called itself ``text`` lives.

    ``unknown`` if that cannot be told from here: another machine or container, or a text that is none.
    """
    parts, mine = text.split("."), owner().split(".")
    if len(parts) != len(mine) or not parts[3].isdigit() or parts[0] != mine[0]:
        return "unknown"
    if parts[1] != mine[1]:
        return "gone"  # this machine was started anew since
    if parts[2] != mine[2]:
        return "unknown"
    pid = int(parts[3])
    return "alive" if started(pid) == parts[4] and is_running(pid) else "gone"


def marked(mark: str) -> list[int]:
    """Return the running processes of the server with that mark."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for pid in _pids():
        try:
            with Path(f"/proc/{pid}/environ").open("rb") as file:
                raw = file.read(ENVIRON_LIMIT)
        except OSError:
            continue
        if wanted in raw.split(b"\0") and is_running(pid):
            found.append(pid)
    return found


def shared_memory(pids: Iterable[int]) -> set[str]:
    """Return the files under /dev/shm that the processes have mapped and that still have a name."""
    found = set()
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/maps").read_text("utf-8", "replace").splitlines()
        except OSError:
            continue
        for line in lines:
            name = line.partition(SHM)[2]
            if name and not name.endswith(" (deleted)") and "/" not in name:
                found.add(SHM + name)
    return found


def remove_shared_memory(files: Iterable[str]) -> None:
    """Remove those of ``files`` that no running process has mapped any more."""
    files = set(files)
    if not files:
        return
    for name in files - shared_memory(_pids()):
        with contextlib.suppress(OSError):
            Path(name).unlink()


def is_mark(text: str) -> bool:
    """Return whether ``text`` can be a mark of the kit. A process may say anything; a mark becomes part of a path."""
    return re.fullmatch(r"[A-Za-z0-9_-]{1,64}", text) is not None


def temporary_folder(mark: str) -> Path:
    """Return the folder for the temporary files of the server with that mark.

    Raises:
        ValueError: no mark of the kit.
    """
    if not is_mark(mark):
        raise ValueError(f"{mark!r} is no mark")
    return Path(tempfile.gettempdir()) / f"{FOLDER_PREFIX}{mark[:12]}"


def make_temporary_folder(mark: str) -> Path:
    """Make that folder, for this user only, with a note of who made it.

    Raises:
        OSError: it cannot be made.
    """
    folder = temporary_folder(mark)
    folder.mkdir(mode=0o700)
    (folder / OWNER_FILE).write_text(owner(), encoding="utf-8")
    return folder


def remove_temporary_folder(mark: str) -> None:
    """Remove that folder if it is there."""
    shutil.rmtree(temporary_folder(mark), ignore_errors=True)


def signal_all(pids: Iterable[int], number: int) -> None:
    """Send a signal to each process that still lives."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_server(mark: str, patience_s: float = 5.0) -> list[int]:
    """End every process with that mark, softly and then by force, and remove what they leave.

    Returns:
        Processes that survived, empty if none did.
    """
    left = marked(mark)
    memory = shared_memory(left)
    for number in (signal.SIGTERM, signal.SIGKILL):
        signal_all(left, number)
        deadline = time.monotonic() + patience_s
        while (left := marked(mark)) and time.monotonic() < deadline:
            memory |= shared_memory(left)
            time.sleep(0.05)
        if not left:
            break
    remove_shared_memory(memory)
    remove_temporary_folder(mark)
    return left


def listeners(port: int) -> set[str]:
    """Return the socket inodes that listen on a TCP port in this network namespace."""
    found = set()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        for line in _read(table).splitlines()[1:]:
            fields = line.split()
            if (
                len(fields) > 9
                and fields[3] == "0A"
                and int(fields[1].rpartition(":")[2], 16) == port
            ):
                found.add(fields[9])
    return found


def holds_socket(pids: Iterable[int], inodes: set[str]) -> bool:
    """Return whether one of the processes has one of the sockets open."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for pid in pids:
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if os.readlink(entry.path) in wanted:  # noqa: PTH115
                        return True
    return False
