"""Checks of processes: who holds GPU memory, servers left over, zombies."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kit.doctor.cards import Cards, on_cards
from kit.doctor.model import Check, Seen, ok, unavailable, warning
from kit.doctor.probes import Host, Job
from kit.nvml import gpu_processes, maybe
from kit.units import MIB

# What a driver keeps of an idle GPU for itself: below this nobody is suspected.
IDLE_MIB = 1024
SERVER_NAMES = ("sglang::", "VLLM::")
SERVER_WORDS = {"sglang.launch_server", "vllm.entrypoints.openai.api_server"}
MOST_NAMED = 6


@dataclass(frozen=True, slots=True)
class Process:
    """A process as ``/proc`` shows it."""

    pid: int
    name: str
    state: str
    parent: int
    words: tuple[str, ...]
    live_threads: int

    @property
    def server(self) -> bool:
        """Return whether it is an inference server: by a whole word of its command, not by a text that names one."""
        return self.name.startswith(SERVER_NAMES) or bool(SERVER_WORDS & set(self.words))

    @property
    def zombie(self) -> bool:
        """Return whether it has ended and waits for its parent to take notice."""
        return self.state == "Z"


def read_process(host: Host, pid: int) -> Process | None:
    """Return a process, None if it is gone or hidden."""
    stat = host.text(f"/proc/{pid}/stat")
    # The name stands in parentheses and may hold some itself.
    match = re.match(r"\d+ \((.*)\) (\S) (\d+)", stat or "", re.S)
    if match is None:
        return None
    words = tuple((host.text(f"/proc/{pid}/cmdline") or "").split("\0"))
    live = 0
    try:
        threads = list(host.path(f"/proc/{pid}/task").iterdir())
    except OSError:
        threads = []
    for thread in threads:
        task = host.text(f"/proc/{pid}/task/{thread.name}/stat") or ""
        found = re.match(r"\d+ \(.*\) (\S)", task, re.S)
        live += bool(found and found.group(1) not in "ZX")
    return Process(pid, match.group(1), match.group(2), int(match.group(3)), words, live)


def processes(host: Host) -> Iterator[Process]:
    """Return the processes that can be seen."""
    try:
        pids = sorted(int(p.name) for p in host.path("/proc").iterdir() if p.name.isdigit())
    except OSError:
        return
    for pid in pids:
        process = read_process(host, pid)
        if process is not None:
            yield process


def own_family(host: Host, pid: int | None = None) -> set[int]:
    """Return the pids of this process, its parents and its children of every generation."""
    pid = os.getpid() if pid is None else pid
    parents = {p.pid: p.parent for p in processes(host)}
    family = {pid}
    up = pid
    while up in parents and parents[up] not in family and parents[up] > 0:
        up = parents[up]
        family.add(up)
    grown = {pid}
    while grown:
        grown = {child for child, parent in parents.items() if parent in grown} - family
        family |= grown
    return family


def how_to_end(host: Host, process: Process) -> str:
    """Return a safe way to end a process: ask first, kill later, and a zombie through its parent."""
    if process.zombie and not process.live_threads:
        parent = read_process(host, process.parent)
        name = f" ({parent.name})" if parent else ""
        return f"a zombie goes when its parent does: `kill {process.parent}`{name}"
    return f"`kill {process.pid}`, and `kill -9 {process.pid}` if it is still there after 10 s"


def _describe(process: Process) -> str:
    what = f"pid {process.pid} {process.name}"
    return f"{what}, a zombie" if process.zombie else what


@on_cards
def _gpu_processes(cards: Cards) -> Seen:
    host = cards.host
    family = own_family(host)
    comparable = host.own_pids()
    holders: list[str] = []
    remedies: list[str] = []
    known = False
    for gpu in cards.gpus:
        listed = gpu_processes(cards.nvml, gpu, drawing=True)
        memory = maybe(cards.nvml, "DeviceGetMemoryInfo", gpu)
        known = known or listed is not None or memory is not None
        held = 0
        for entry in listed or []:
            pid, used = entry["pid"], entry["usedGpuMemory"] or 0
            held += used
            if comparable and pid in family:
                continue
            size = f" ({used // MIB} MiB)" if used else ""
            process = read_process(host, pid) if comparable else None
            if process is None:
                holders.append(f"GPU {gpu.index}: pid {pid} of the host{size}")
                remedies.append(f"on the host: `kill {pid}`, after 10 s `kill -9 {pid}`")
            else:
                holders.append(f"GPU {gpu.index}: {_describe(process)}{size}")
                remedies.append(how_to_end(host, process))
        unseen = (memory["used"] - held) // MIB if memory else 0
        if unseen > IDLE_MIB:
            holders.append(f"GPU {gpu.index}: {unseen} MiB held by no process that is visible here")
            remedies.append(
                "look from the host, as root: `fuser -v /dev/nvidia*` names processes of other containers and of "
                "dead servers"
            )
    if not known:
        return unavailable("the driver tells neither processes nor memory")
    if holders:
        return warning(
            _some(holders), "End what is not needed: " + _some(list(dict.fromkeys(remedies))) + "."
        )
    where = "" if comparable else " (as far as a container sees)"
    return ok(f"no other process on the GPUs{where}")


def _some(words: Sequence[str]) -> str:
    rest = len(words) - MOST_NAMED
    return "; ".join(words[:MOST_NAMED]) + (f"; and {rest} more" if rest > 0 else "")


def _leftovers(host: Host, job: Job) -> Seen:
    family = own_family(host)
    found, remedies, harmless = [], [], []
    seen = 0
    for process in processes(host):
        seen += 1
        # A child of this process that has just ended is a zombie for a moment.
        if process.pid in family or process.parent == os.getpid():
            continue
        if process.zombie and (process.server or process.live_threads):
            threads = f" with {process.live_threads} live threads" if process.live_threads else ""
            found.append(_describe(process) + threads)
            remedies.append(how_to_end(host, process))
        elif process.zombie:
            harmless.append(process)
        elif process.server and not job.elsewhere:
            found.append(f"{_describe(process)}, an inference server")
            remedies.append(how_to_end(host, process))
    if not seen:
        return unavailable("/proc shows no processes")
    dead = ""
    if harmless:
        first = harmless[0]
        dead = f"{len(harmless)} zombies" if len(harmless) > 1 else "1 zombie"
        dead += f" that hold nothing (pid {first.pid} {first.name}; {how_to_end(host, first)})"
    if found:
        return warning(
            _some(found),
            "If they are not meant to run: " + _some(list(dict.fromkeys(remedies))) + ".",
        )
    return ok(f"no inference server left over{'; ' + dead if dead else ''}")


CHECKS = (
    Check(
        "gpu.processes",
        "Another process takes memory, SMs and PCIe bandwidth; SGLang's cache is sized by what is free.",
        _gpu_processes,
        "https://github.com/sgl-project/sglang/issues/8008",
    ),
    Check(
        "host.leftovers",
        "A server left over from before holds memory and processors, and a dead one may hold a GPU.",
        _leftovers,
    ),
)
