"""Several client processes that act as one: a shared queue, one start, results merged as they come.

A worker is ``python -m kit.load.worker``. It gets its job on standard input, says ``ready`` when its connections
are open, and is told the moment of the start; the monotonic clock is the same for all processes of a host. What
to send next is read from one open file that all workers inherit: each read of four bytes moves the position that
they share, so a request is sent by exactly one of them, whoever is free first, with no lock to be left held.
"""

from __future__ import annotations

import math
import os
import selectors
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import IO, Any

import orjson

from kit.errors import UserError
from kit.load.arrivals import planned_sends
from kit.load.health import Vitals
from kit.load.level import OnResult, failed_results, target_of
from kit.load.model import (
    Arrival,
    ChunkLog,
    ClosedLoop,
    Endpoint,
    Request,
    RequestError,
    RequestResult,
)

# CPU time that one event costs a client process, rounded up from benchmarks/client; half a core is the limit.
EVENT_US = 25.0
HALF_CORE_US = 500_000.0
START_LEAD_NS = 50_000_000
READY_S = 60.0


def workers_for(events_per_s: float, cores: int | None = None) -> int:
    """Return how many client processes a rate of streamed events needs so that none uses half a core.

    Args:
        events_per_s: Streamed events a second expected from the server, at most its output tokens a second.
        cores: Cores of this host, where it should not be asked; one process a core is the most.
    """
    most = max(1, (cores or os.cpu_count() or 1) - 1)
    return min(most, max(1, math.ceil(events_per_s * EVENT_US / HALF_CORE_US)))


def result_to_json(result: RequestResult) -> dict[str, Any]:
    """Return a result as plain JSON values."""
    row = {name: getattr(result, name) for name in result.__slots__ if name != "chunks"}
    row["error"] = asdict(result.error) if result.error else None
    row["chunks"] = [list(pair) for pair in result.chunks]
    return row


def result_from_json(row: dict[str, Any]) -> RequestResult:
    """Undo :func:`result_to_json`."""
    chunks = ChunkLog((at, n) for at, n in row.pop("chunks"))
    error = row.pop("error")
    return RequestResult(**row, chunks=chunks, error=RequestError(**error) if error else None)


@contextmanager
def _queue(count: int) -> Iterator[int]:
    with tempfile.TemporaryFile() as file:
        file.write(struct.pack(f"={count}I", *range(count)))
        file.flush()
        file.seek(0)
        yield file.fileno()


def take_from(fd: int) -> int | None:
    """Take the next index from the shared queue, None when it is empty."""
    raw = os.read(fd, 4)
    return struct.unpack("=I", raw)[0] if len(raw) == 4 else None


def _jobs(
    endpoint: Endpoint,
    requests: Sequence[Request],
    arrival: Arrival,
    timeout_s: float,
    workers: int,
) -> list[dict[str, Any]]:
    common: dict[str, Any] = {
        "endpoint": asdict(endpoint),
        "requests": [asdict(r) for r in requests],
        "timeout_s": timeout_s,
    }
    if isinstance(arrival, ClosedLoop):
        total = min(arrival.concurrency, len(requests))
        workers = min(workers, total)
        slots = [total // workers + (w < total % workers) for w in range(workers)]
        return [{**common, "slots": n} for n in slots]
    sends = list(enumerate(planned_sends(arrival, len(requests))))
    return [{**common, "sends": [[at, i] for i, at in sends[w::workers]]} for w in range(workers)]


class _Worker:
    """The parent's side of one worker process."""

    def __init__(self, job: dict[str, Any], queue_fd: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kit.load.worker", str(queue_fd)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(queue_fd,),
            # Ctrl-C reaches the parent only, which then ends its workers.
            start_new_session=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin: IO[bytes] = self.process.stdin
        self.stdout: IO[bytes] = self.process.stdout
        self.rest = b""
        self.vitals: Vitals | None = None
        self.error: tuple[str, str] | None = None
        # A dead worker is found when its output ends, with what it had to say.
        self.tell(job)

    def tell(self, message: dict[str, Any]) -> None:
        try:
            self.stdin.write(orjson.dumps(message) + b"\n")
            self.stdin.flush()
        except BrokenPipeError:
            pass

    def hear(self) -> list[dict[str, Any]] | None:
        """Return the messages that came, None at the end of the output."""
        piece = os.read(self.stdout.fileno(), 1 << 20)
        if not piece:
            return None
        *lines, self.rest = (self.rest + piece).split(b"\n")
        return [orjson.loads(line) for line in lines]

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.stdin.close()
        self.stdout.close()


def run_workers(
    endpoint: Endpoint,
    requests: Sequence[Request],
    arrival: Arrival,
    timeout_s: float,
    on_result: OnResult,
    workers: int,
) -> tuple[list[RequestResult], list[Vitals]]:
    """Run one level in several processes.

    A worker that dies loses its own requests only: they come back with an error.

    Raises:
        UserError: the job cannot be done as asked, or no worker came up.
    """
    target_of(endpoint)
    jobs = _jobs(endpoint, requests, arrival, timeout_s, workers)
    results: list[RequestResult] = []
    with ExitStack() as stack:
        fd = stack.enter_context(_queue(len(requests)))
        crew: list[_Worker] = []
        for job in jobs:
            crew.append(_Worker(job, fd))
            stack.callback(crew[-1].end)
        selector = stack.enter_context(selectors.DefaultSelector())
        for worker in crew:
            selector.register(worker.stdout, selectors.EVENT_READ, worker)
        ready = 0
        deadline = time.monotonic() + READY_S
        while selector.get_map():
            waited = max(0.0, deadline - time.monotonic()) if ready < len(crew) else None
            heard = selector.select(waited)
            if not heard and ready < len(crew):
                raise UserError(
                    f"A client process did not come up within {READY_S:g} s.",
                    "Look at the load of this machine, or use one worker.",
                )
            for key, _ in heard:
                worker = key.data
                messages = worker.hear()
                if messages is None:
                    selector.unregister(key.fileobj)
                    if worker.vitals is None and ready < len(crew):
                        raise UserError(*(worker.error or ("A client process died at its start.",)))
                    continue
                for message in messages:
                    kind = message.pop("kind")
                    if kind == "ready":
                        ready += 1
                        if ready == len(crew):
                            start = time.perf_counter_ns() + START_LEAD_NS
                            for other in crew:
                                other.tell({"zero_ns": start})
                    elif kind == "result":
                        results.append(result_from_json(message))
                        on_result(results[-1])
                    elif kind == "vitals":
                        worker.vitals = Vitals(**message)
                    elif kind == "error":
                        worker.error = (message["sentence"], message["remedy"])
    lost = failed_results(requests, {r.index for r in results}, "its client process died")
    for result in lost:
        results.append(result)
        on_result(result)
    return results, [w.vitals or Vitals() for w in crew]
