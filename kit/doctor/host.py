"""Checks of the host itself: memory, limits, disk, clocks, processors."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from kit import paths
from kit.doctor.model import Check, Seen, blocker, ok, unavailable, warning
from kit.doctor.needs import HOST_OVERHEAD, host_memory_needed, pair_spec
from kit.doctor.probes import Host, Job, used_gpus
from kit.units import GIB, MIB

DOCKER_SHM = 64 * MIB
"""What a container gets when nobody asks for more."""
SHM_PER_GPU = GIB // 2
LOOK_S = 0.5
MOST_STEAL = 0.02
MOST_BUSY = 0.15
GOOD_CLOCKS = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page")
CGROUP = "/sys/fs/cgroup"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB // 10 else f"{size // MIB} MiB"


def _shm(host: Host, job: Job) -> Seen:
    if job.elsewhere:
        return unavailable("the server runs elsewhere")
    try:
        total, _, free = host.usage(host.path("/dev/shm"))
    except OSError as error:
        return unavailable(f"/dev/shm cannot be read: {error.strerror or error}")
    text = f"/dev/shm has {_gib(total)}, {_gib(free)} free"
    if job.backend == "compose":
        return ok(f"{text} here; compose.yaml gives the server its own")
    gpus = max(job.wanted_gpus, 1)
    remedy = "Start the container with --shm-size=16g or --ipc=host; the kit's compose.yaml does."
    if gpus > 1 and free < SHM_PER_GPU * gpus:
        return blocker(
            f"{text}; NCCL needs about {_gib(SHM_PER_GPU * gpus)} for {gpus} GPUs", remedy
        )
    if total <= DOCKER_SHM:
        return warning(f"{text}, Docker's default", remedy)
    if free < DOCKER_SHM:
        return warning(text, "Remove what is left in /dev/shm by ended servers (`ls -l /dev/shm`).")
    return ok(text)


def _limit(host: Host, name: str) -> tuple[str, float] | None:
    text = host.text("/proc/self/limits") or ""
    found = re.search(rf"^Max {name}\s+(\S+)\s+(\S+)", text, re.M)
    if found is None:
        return None
    soft = found.group(1)
    return soft, float("inf") if soft == "unlimited" else float(soft)


def _ulimits(host: Host, job: Job) -> Seen:
    files = _limit(host, "open files")
    locked = _limit(host, "locked memory")
    tasks = _limit(host, "processes")
    if files is None or locked is None or tasks is None:
        return unavailable("/proc/self/limits cannot be read")
    text = f"open files {files[0]}, locked memory {locked[0]} bytes, processes {tasks[0]}"
    connections = max(job.rig.load.levels) if job.rig else 1
    if files[1] < 4 * connections + 256:
        return blocker(
            text, f"`ulimit -n 65536`: {connections} requests at once need more open files."
        )
    if files[1] < 1024:
        return warning(
            text, "`ulimit -n 65536`: server and client open a file for each connection."
        )
    if tasks[1] < 1024:
        return warning(
            text, "Raise the limit of processes (`ulimit -u`): a server has some hundred threads."
        )
    if job.wanted_gpus > 1 and locked[1] < 64 * MIB and job.backend != "compose":
        return warning(text, "`ulimit -l unlimited`: NCCL pins host memory for its transfers.")
    return ok(text)


def _existing(path: Path) -> Path:
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _disk(host: Host, job: Job) -> Seen:
    wanted: list[tuple[str, Path, int]] = [("run folders", job.runs, GIB // 4)]
    spec = pair_spec(job)
    if spec is not None and job.rig is not None:
        pair = paths.pairs_dir() / job.rig.name
        size = 0 if (pair / "pair.json").is_file() else int(1.1 * spec.weight_bytes())
        wanted.append(("the planted pair", pair, size))
    if job.needs_gpu and not job.elsewhere:
        home = host.environ.get("KIT_CACHE") or host.environ.get("HOME") or "/tmp"
        wanted.append(("caches of compiled kernels", Path(home), 2 * GIB))
    short, words, closed = [], [], []
    need: dict[int, int] = {}
    for what, path, size in wanted:
        place = _existing(path)
        try:
            free = host.usage(place)[2]
            device = place.stat().st_dev
        except OSError as error:
            return unavailable(f"{place} cannot be looked at: {error.strerror or error}")
        need[device] = need.get(device, 0) + size
        words.append(f"{_gib(free)} free for {what}")
        if size and not os.access(place, os.W_OK | os.X_OK):
            closed.append(f"{what} cannot be written to {path}")
        if free < need[device]:
            short.append(f"{what} need {_gib(size)} at {path}, {_gib(free)} are free")
    text = "; ".join(words)
    if closed:
        return blocker(
            "; ".join(closed),
            "Name a folder that this user may write to: --out, KIT_RUNS, KIT_PAIRS, KIT_CACHE.",
        )
    if short:
        return blocker(
            "; ".join(short),
            "Free some space, or name other places: --out, KIT_RUNS, KIT_PAIRS, KIT_CACHE.",
        )
    return ok(text)


def meminfo(host: Host) -> dict[str, int]:
    """Return ``/proc/meminfo`` in bytes; empty if it cannot be read."""
    text = host.text("/proc/meminfo") or ""
    return {m[1]: int(m[2]) << 10 for m in re.finditer(r"^(\w+):\s+(\d+) kB$", text, re.M)}


def _ram(host: Host, job: Job) -> Seen:
    if job.elsewhere:
        return unavailable("the server runs elsewhere")
    have = meminfo(host)
    if "MemAvailable" not in have:
        return unavailable("/proc/meminfo cannot be read")
    free, total = have["MemAvailable"], have.get("MemTotal", 0)
    text = f"{_gib(free)} of {_gib(total)} available"
    need = host_memory_needed(job, host.environ)
    if need is None:
        return ok(text)
    text += f"; the server takes about {_gib(need)}"
    if free < need - HOST_OVERHEAD // 2:
        return blocker(text, "Free memory (host.leftovers names servers), or choose a smaller rig.")
    if free < need:
        return warning(text, "It is tight: end what else uses memory.")
    return ok(text)


def container_limit(host: Host) -> tuple[int, int] | None:
    """Return (limit, used) bytes of the control group, None where there is no limit.

    In a container with its own group namespace the group is the root of what it sees; without one it is found through
    ``/proc/self/cgroup``. Limits of groups above count too.
    """
    groups = host.text("/proc/self/cgroup") or ""
    below = next((g[3:] for g in groups.splitlines() if g.startswith("0::")), "/")
    found: list[tuple[int, int]] = []
    folder = Path(CGROUP + below)
    for place in [folder, *folder.parents]:
        if not str(place).startswith(CGROUP):
            break
        limit = host.text(f"{place}/memory.max") or ""
        used = host.text(f"{place}/memory.current") or "0"
        if limit.isdigit():
            found.append((int(limit), int(used) if used.isdigit() else 0))
    old = host.text(f"{CGROUP}/memory/memory.limit_in_bytes") or ""
    used = host.text(f"{CGROUP}/memory/memory.usage_in_bytes") or "0"
    if old.isdigit():
        found.append((int(old), int(used) if used.isdigit() else 0))
    total = meminfo(host).get("MemTotal", 0)
    real = [f for f in found if not total or f[0] < total]
    return min(real) if real else None


def _memory_limit(host: Host, job: Job) -> Seen:
    limit = container_limit(host)
    if limit is None:
        return ok("no limit below the machine's memory")
    left = limit[0] - limit[1]
    text = f"limit {_gib(limit[0])}, {_gib(limit[1])} used"
    need = host_memory_needed(job, host.environ)
    remedy = "Raise it: `docker run --memory`, mem_limit in compose, MemoryMax of the systemd unit."
    if need is not None and job.backend not in ("compose", "attach"):
        text += f"; the server takes about {_gib(need)}"
        # The page cache counts as used and is given back, so only the limit itself can block.
        if limit[0] < need:
            return blocker(text, remedy)
        if left < need // 2:
            return warning(text, remedy)
    return ok(text)


def _clock(host: Host, _job: Job) -> Seen:
    base = "/sys/devices/system/clocksource/clocksource0"
    now = host.text(f"{base}/current_clocksource")
    if now is None:
        return unavailable("the kernel does not tell its clock source here")
    text = f"clock source {now}"
    if now in GOOD_CLOCKS:
        return ok(text)
    others = host.text(f"{base}/available_clocksource") or ""
    better = next((c for c in GOOD_CLOCKS if c in others.split()), None)
    remedy = (
        f"Boot with clocksource={better}."
        if better
        else "Ask who runs the hypervisor for a TSC clock."
    )
    return warning(f"{text} (available: {others})", remedy)


def _governor(host: Host, _job: Job) -> Seen:
    found: dict[str, int] = {}
    base = host.path("/sys/devices/system/cpu")
    for file in base.glob("cpu[0-9]*/cpufreq/scaling_governor"):
        try:
            word = file.read_text("utf-8").strip()
        except OSError:
            continue
        found[word] = found.get(word, 0) + 1
    if not found:
        return unavailable(
            "no frequency control is visible (a virtual machine leaves it to its host)"
        )
    text = "governor " + ", ".join(f"{word} on {n} CPUs" for word, n in found.items())
    if set(found) == {"performance"}:
        return ok(text)
    return warning(
        text, "`sudo cpupower frequency-set -g performance` for the time of the measurement."
    )


def cpu_ticks(host: Host) -> list[int]:
    """Return the ticks of all CPUs since boot: user, nice, system, idle, iowait, irq, softirq, steal, …"""
    line = (host.text("/proc/stat") or "").split("\n")[0]
    return [int(word) for word in line.split()[1:]] if line.startswith("cpu ") else []


def _steal(host: Host, _job: Job) -> Seen:
    first = cpu_ticks(host)
    time.sleep(LOOK_S)
    change = [b - a for a, b in zip(first, cpu_ticks(host), strict=False)]
    total = sum(change[:8])
    if len(change) < 8 or total <= 0:
        return unavailable("/proc/stat does not count here")
    steal = change[7] / total
    busy = 1 - (change[3] + change[4]) / total - steal
    text = (
        f"over {LOOK_S:g} s {busy:.0%} of the processors busy, {steal:.1%} stolen by the hypervisor"
    )
    if steal > MOST_STEAL:
        return warning(
            text,
            "Other guests use this machine: measure when they rest, or on dedicated processors.",
        )
    if busy > MOST_BUSY:
        return warning(text, "End other work on this machine while measuring (`top` names it).")
    return ok(text)


def _cpus(host: Host, job: Job) -> Seen:
    status = host.text("/proc/self/status") or ""
    found = re.search(r"^Cpus_allowed_list:\s*(\S+)", status, re.M)
    if found is None:
        return unavailable("/proc/self/status does not tell the CPUs")
    count = 0
    for part in found.group(1).split(","):
        low, _, high = part.partition("-")
        count += int(high or low) - int(low) + 1
    text = f"{count} CPUs"
    quota = (host.text(f"{CGROUP}/cpu.max") or "").split()
    share = float(count)
    if len(quota) == 2 and quota[0].isdigit():
        share = int(quota[0]) / int(quota[1])
        text += f", of which the container may use {share:.1f}"
    need = 2 if not job.needs_gpu else 4 + 2 * job.wanted_gpus
    if job.rig is not None and share < need and not job.elsewhere:
        return warning(
            f"{text}; server and client want {need}",
            "Give more CPUs: the scheduler, the detokenizer and the client each need one.",
        )
    return ok(text)


def _rest(host: Host, job: Job) -> Seen:
    gpus = len(used_gpus(host, job))
    inside = []
    if host.path("/.dockerenv").exists() or host.path("/run/.containerenv").exists():
        inside.append("in a container")
    if "hypervisor" in (host.text("/proc/cpuinfo") or ""):
        inside.append("on a virtual machine")
    kernel = host.text("/proc/sys/kernel/osrelease") or "unknown"
    where = ", ".join(inside) or "on the metal, or a hypervisor that hides"
    return ok(f"kernel {kernel}, {where}, {gpus} GPUs for the server")


# The look at idle processors comes first: later checks keep them busy.
CHECKS = (
    Check(
        "host.load",
        "Work of others on the same processors slows server and client, and steal time does so unseen.",
        _steal,
    ),
    Check("host.where", "What a container or a virtual machine hides cannot be checked.", _rest),
    Check(
        "host.cpus",
        "Too few processors make client and server wait for each other.",
        _cpus,
    ),
    Check(
        "host.shm",
        "NCCL and PyTorch pass data between processes through /dev/shm; when it is full they die.",
        _shm,
        "https://github.com/sgl-project/sglang/issues/4259",
    ),
    Check("host.ulimits", "Each connection is an open file; NCCL locks memory.", _ulimits),
    Check("host.disk", "A full disk ends a run in its middle.", _disk),
    Check("host.ram", "Weights pass through the host's memory.", _ram),
    Check(
        "host.memory-limit",
        "The kernel kills a process of the container at its limit, whatever the host has left.",
        _memory_limit,
    ),
    Check("host.clock", "A slow clock source costs time at every time stamp.", _clock),
    Check(
        "host.governor",
        "A governor that saves power lets clocks follow the load late.",
        _governor,
        "https://docs.kernel.org/admin-guide/pm/cpufreq.html",
    ),
)
