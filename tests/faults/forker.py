"""Run the real command line many times without paying for its imports each time.

    python -m tests.faults.forker

Reads one JSON object a line, {"argv", "env", "cwd", "base"}; for each one it forks a process that calls
``kit.cli.main`` in a session of its own, with its output in BASE.out and BASE.err, its pid in
BASE.pid and its exit code in BASE.rc.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

# All that a run would import, so that a fork has it.
import kit.backends.base
import kit.cli
import kit.cli.run
import kit.load
import kit.planted
import kit.planted.make
import kit.report.finish
from kit.backends.process import ProcessBackend
from kit.report.write import Written

# The stand-in is ready in no time; a quarter of a second a poll would be most of a run.
kit.backends.base.POLL_S = 0.03


def _fill_disk(after: int) -> None:
    """Let every write of records fail after ``after`` of them, where no small file system can be mounted."""
    real, writes = os.write, 0

    def write(handle: int, data: Any) -> int:
        nonlocal writes
        writes += 1
        if writes > after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(handle, data)

    os.write = write


def _step_clock(after: int, seconds: float) -> None:
    """Step the wall clock by ``seconds`` once it has been read ``after`` times."""
    real, reads = time.time, 0

    def read() -> float:
        nonlocal reads
        reads += 1
        return real() + (seconds if reads > after else 0.0)

    time.time = read


def _mounted_names(hosts: str) -> bool:
    """Bind ``hosts`` over /etc/hosts for this process and its children, and ask nothing but that file for names."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts, bind, private = 0x20000, 0x1000, 0x4000 | 0x40000
    only_files = Path(hosts).with_name("nsswitch.conf")
    only_files.write_text("hosts: files\n")
    return (
        libc.unshare(new_mounts) == 0
        and libc.mount(b"none", b"/", None, private, None) == 0
        and libc.mount(os.fsencode(only_files), b"/etc/nsswitch.conf", None, bind, None) == 0
        and libc.mount(os.fsencode(hosts), b"/etc/hosts", None, bind, None) == 0
    )


def _patched_names(hosts: str) -> None:
    """The same by other means, where nothing can be mounted: both resolvers that the kit uses read ``hosts``."""

    def address(host: Any) -> Any:
        if host in ("127.0.0.1", "localhost"):
            return host
        for line in Path(hosts).read_text().splitlines():
            if str(host) in line.split()[1:]:
                return line.split()[0]
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    real, connect = socket.getaddrinfo, uvloop.Loop.create_connection

    async def create_connection(self: Any, factory: Any, host: Any, *more: Any, **rest: Any) -> Any:
        return await connect(self, factory, address(host), *more, **rest)

    socket.getaddrinfo = lambda host, *more, **rest: real(address(host), *more, **rest)
    uvloop.Loop.create_connection = create_connection  # type: ignore[method-assign]


def _count_appends(handle: int) -> None:
    """Tell of each record that was appended, so that a killer knows what must be there."""
    from kit.runfolder import RunFolder

    real = RunFolder.append

    def append(self: RunFolder, record: Any) -> None:
        real(self, record)
        os.write(handle, record.kind[:2].encode())

    RunFolder.append = append  # type: ignore[method-assign]


def _kit(job: dict[str, Any]) -> None:
    base = job["base"]
    os.setsid()
    os.chdir(job["cwd"])
    for number, suffix in ((1, ".out"), (2, ".err")):
        handle = os.open(base + suffix, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(handle, number)
        os.close(handle)
    os.environ.clear()
    os.environ.update(job["env"])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(
            number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        )
    if "STUB_PYTHON" in os.environ:
        assert ProcessBackend.__init__.__kwdefaults__ is not None
        ProcessBackend.__init__.__kwdefaults__["python"] = os.environ["STUB_PYTHON"]
    if "TEST_DISK" in os.environ:
        _fill_disk(int(os.environ["TEST_DISK"]))
    if "TEST_CLOCK" in os.environ:
        _step_clock(20, float(os.environ["TEST_CLOCK"]))
    if "TEST_HOSTS" in os.environ and not _mounted_names(os.environ["TEST_HOSTS"]):
        _patched_names(os.environ["TEST_HOSTS"])
    if "TEST_APPENDS" in os.environ:
        _count_appends(os.open(os.environ["TEST_APPENDS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    if "TEST_NO_REPORT" in os.environ:
        kit.report.finish.write_reports = lambda *_: Written(None, None, "")
    sys.argv = ["kit", *job["argv"]]
    code: Any = 70
    try:
        kit.cli.main()
    except SystemExit as error:
        code = error.code
    except BaseException:  # noqa: BLE001 - as the interpreter would
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(bool(code)))


def _supervise(job: dict[str, Any]) -> None:
    pid = os.fork()
    if pid == 0:
        _kit(job)
    base = Path(job["base"])
    base.with_suffix(".pid").write_text(f"{pid}\n")
    _, status = os.waitpid(pid, 0)
    partial = base.with_suffix(".part")
    partial.write_text(str(os.waitstatus_to_exitcode(status)))
    partial.replace(base.with_suffix(".rc"))
    os._exit(0)


def main() -> None:
    # Nobody waits for the supervisors: the kernel does.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # The load client collects garbage before each level; what is imported here is not worth a look each time.
    gc.freeze()
    gc.unfreeze = lambda: None
    for line in sys.stdin:
        job = json.loads(line)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _supervise(job)


if __name__ == "__main__":
    main()
