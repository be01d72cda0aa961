"""The thread that samples the machine once a second while a run measures."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

import orjson

from kit import nvml as nvml_module
from kit.nvml import Gpu, Nvml, maybe
from kit.telemetry.cpu import (
    CpuTimes,
    Tree,
    cpu_times,
    mean_mhz,
    own_tree,
    package_energy_uj,
)
from kit.telemetry.files import FILE
from kit.telemetry.gpu import sample_gpu
from kit.telemetry.records import GAP_FACTOR, TelemetryHeader, TelemetrySample
from kit.units import MIB

INTERVAL_S = 1.0
PAGE = os.sysconf("SC_PAGE_SIZE")
# Samples between two looks for new processes of the server.
RENEW = 5


class Reader:
    """Reads samples; keeps what the next one is counted from.

    Args:
        nvml: Who answers for the GPUs; None without.
        gpus: Which GPUs to sample.
        local: Whether the server's processes are children of this one (process backend).
        root: Where ``/proc`` and ``/sys`` are.
        comparable: Whether NVML's pids are those that are seen here.
        interval_s: The time that samples should lie apart.
    """

    def __init__(
        self,
        nvml: Nvml | None,
        gpus: Sequence[Gpu],
        *,
        local: bool,
        root: Path = Path("/"),
        comparable: bool = False,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._nvml = nvml
        self._gpus = list(gpus)
        self._local = local
        self._root = root
        self._comparable = comparable and local
        self._interval_s = interval_s
        self._last_t: float | None = None
        self._times: CpuTimes | None = None
        self._tree: Tree | None = None
        self._count = 0

    def header(self, now: float) -> TelemetryHeader:
        """Return the header: what is sampled, and what is not there."""
        missing = {}
        if self._nvml is None or not self._gpus:
            missing["gpus"] = "no GPU is used, or NVML does not answer"
        elif not self._comparable:
            missing["gpus.processes.ours"] = "pids of the GPU's processes are not those seen here"
        if not self._local:
            missing["cpu_ours"] = missing["server_rss_mib"] = (
                "the server is not a child of this process"
            )
        if mean_mhz(self._root) is None:
            missing["cpu_mhz"] = "the kernel does not tell the clock"
        if package_energy_uj(self._root) is None:
            missing["cpu_energy_uj"] = "no RAPL counter that this user may read"
        return TelemetryHeader(
            t=now,
            interval_s=self._interval_s,
            gpus=[
                str(maybe(self._nvml, "DeviceGetName", g) or "?") for g in self._gpus if self._nvml
            ],
            cpus=os.cpu_count() or 1,
            unavailable=missing,
        )

    def read(self, now: float) -> TelemetrySample:
        """Return a sample."""
        times, old_times = cpu_times(self._root), self._times
        old_tree = self._tree
        tree = None
        if self._local:
            # Every few samples the server's processes are looked for anew.
            known = old_tree if self._count % RENEW else None
            tree = own_tree(self._root, known)
        self._count += 1
        late = 0.0 if self._last_t is None else now - self._last_t
        gap = late - self._interval_s if late > GAP_FACTOR * self._interval_s else 0.0
        self._last_t, self._times, self._tree = now, times, tree
        busy = steal = ours = None
        if times is not None and old_times is not None and times.total > old_times.total:
            total = times.total - old_times.total
            busy = (times.busy - old_times.busy) / total
            steal = (times.steal - old_times.steal) / total
            if tree is not None and old_tree is not None:
                ours = min(1.0, max(0, tree.ticks - old_tree.ticks) / total)
        return TelemetrySample(
            t=now,
            gap_s=gap,
            cpu=busy,
            steal=steal,
            cpu_ours=ours,
            cpu_mhz=mean_mhz(self._root),
            cpu_energy_uj=package_energy_uj(self._root),
            server_rss_mib=tree.server_pages * PAGE / MIB if tree and tree.servers else None,
            gpus=[
                sample_gpu(self._nvml, gpu, lambda pid: self._is_ours(tree, pid))
                for gpu in self._gpus
                if self._nvml is not None
            ],
        )

    def _is_ours(self, tree: Tree | None, pid: int) -> bool | None:
        return pid in tree.pids if tree is not None and self._comparable else None


class Sampler:
    """Writes a header and then a sample every interval, on a thread of its own, until it is closed.

    A disk that is full or a driver that goes away ends the samples, never the run: what is missing shows as a gap.
    """

    def __init__(
        self,
        reader: Reader,
        path: Path,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._reader = reader
        self._path = path
        self._interval_s = interval_s
        self._clock = clock
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kit-telemetry", daemon=True)

    def _run(self) -> None:
        with contextlib.suppress(OSError), self._path.open("ab") as out:
            now = self._clock()
            self._write(out.write, self._reader.header(now))
            out.flush()
            due = time.monotonic()
            while True:
                self._write(out.write, self._reader.read(self._clock()))
                out.flush()
                # Due times are on a grid, so that sampling takes nothing off the rate; a missed one is left out.
                due = max(due + self._interval_s, time.monotonic() - self._interval_s)
                if self._end.wait(max(0.0, due - time.monotonic())):
                    # The last moment, so that the end of the last level lies between two samples.
                    self._write(out.write, self._reader.read(self._clock()))
                    return

    @staticmethod
    def _write(write: Callable[[bytes], int], record: TelemetryHeader | TelemetrySample) -> None:
        write(
            orjson.dumps(
                record.model_dump(mode="json", exclude_none=True), option=orjson.OPT_APPEND_NEWLINE
            )
        )

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join(timeout=10)


@contextlib.contextmanager
def sampling(
    folder: Path, *, gpus: int, backend: str, interval_s: float = INTERVAL_S
) -> Iterator[None]:
    """Sample this machine into ``folder``/telemetry.jsonl while the context is open.

    Args:
        folder: The run folder.
        gpus: How many GPUs a server takes, the first of those visible; 0 for none.
        backend: Name of the backend: with ``process`` the server's processes are children of this one.
        interval_s: Time between samples.
    """
    # A run without GPUs does not open NVML.
    with contextlib.ExitStack() as stack:
        library: Nvml | None = None
        if gpus and backend != "attach":
            with contextlib.suppress(nvml_module.NvmlError):
                library = stack.enter_context(nvml_module.opened())
        chosen = nvml_module.visible_gpus(library, os.environ)[:gpus] if library else []
        reader = Reader(
            library,
            chosen,
            local=backend == "process",
            comparable=nvml_module.pids_are_the_hosts(),
            interval_s=interval_s,
        )
        stack.enter_context(Sampler(reader, folder / FILE, interval_s))
        yield
