"""Processor time, frequency and memory of the host and of the kit's own processes, from ``/proc`` and ``/sys``.

Everything is read through a root folder. One reading costs well under a millisecond on a small host: it must not slow
down what it measures.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

STAT_FIELDS = 8
"""user, nice, system, idle, iowait, irq, softirq, steal: guest time is in user time already."""


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Ticks of all processors since boot."""

    busy: int
    idle: int
    steal: int

    @property
    def total(self) -> int:
        """Return all ticks."""
        return self.busy + self.idle + self.steal


@dataclass(slots=True)
class Tree:
    """The kit's own processes.

    Args:
        ticks: Processor time of all of them, with that of those that have ended. Time of a process that ends goes to
            the parent that waits for it, so the sum never falls while all are waited for.
        pids: All of them.
        servers: Those of the server.
        server_pages: Resident pages of the server's.
    """

    ticks: int = 0
    pids: set[int] = field(default_factory=set)
    servers: set[int] = field(default_factory=set)
    server_pages: int = 0


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def cpu_times(root: Path) -> CpuTimes | None:
    """Return the ticks of all processors, None if they cannot be read."""
    words = _read(root / "proc/stat").split("\n", 1)[0].split()
    if len(words) <= STAT_FIELDS or words[0] != "cpu":
        return None
    user, nice, system, idle, iowait, irq, softirq, steal = map(int, words[1 : STAT_FIELDS + 1])
    return CpuTimes(busy=user + nice + system + irq + softirq, idle=idle + iowait, steal=steal)


def _children(root: Path, pid: int) -> Iterator[int]:
    try:
        tasks = list((root / f"proc/{pid}/task").iterdir())
    except OSError:
        return
    for task in tasks:
        yield from map(int, _read(task / "children").split())


def own_tree(root: Path, known: Tree | None = None, pid: int | None = None) -> Tree:
    """Return this process and its children of every generation.

    A child that leads a session of its own, and what it started, is the server: the process backend starts it so, and
    the load client's workers stay in the kit's session.

    Args:
        root: Where ``/proc`` is.
        known: A reading of a moment ago: the server's processes are taken from it and their children are not looked
            for, because a server has hundreds of threads and each would have to be asked.
        pid: The first process; this one by default.
    """
    top = os.getpid() if pid is None else pid
    tree = Tree()
    # (pid, belongs to a server)
    todo = [(top, False)] + [(server, True) for server in (known.servers if known else ())]
    while todo:
        now, server = todo.pop()
        if now in tree.pids:
            continue
        # The name stands in parentheses and may hold some itself; fields are counted after it.
        fields = _read(root / f"proc/{now}/stat").rpartition(")")[2].split()
        if len(fields) < 22:
            continue
        tree.pids.add(now)
        server = server or (now != top and int(fields[3]) == now)
        # utime, stime, and those of children that have ended and were waited for.
        tree.ticks += sum(map(int, fields[11:15]))
        if server:
            tree.servers.add(now)
            tree.server_pages += int(fields[21])
        if not server or known is None:
            todo += [(child, server) for child in _children(root, now)]
    return tree


def mean_mhz(root: Path) -> float | None:
    """Return the processors' mean clock, None where it is not told."""
    found = [
        int(text) / 1000
        for file in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq")
        if (text := _read(file).strip()).isdigit()
    ]
    if not found:
        text = _read(root / "proc/cpuinfo")
        found = [float(m) for m in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", text, re.M)]
    return sum(found) / len(found) if found else None


def package_energy_uj(root: Path) -> int | None:
    """Return the sum of the packages' energy counters, µJ; None where they are not there or not readable."""
    found = [
        int(text)
        for file in (root / "sys/class/powercap").glob("intel-rapl:*/energy_uj")
        # intel-rapl:0 is a package, intel-rapl:0:0 a part of it that it has counted already.
        if file.parent.name.count(":") == 1 and (text := _read(file).strip()).isdigit()
    ]
    return sum(found) if found else None
