"""One client process of several: ``python -m kit.load.worker QUEUE_FD``; see :mod:`kit.load.workers`."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import asdict
from typing import Any

import orjson
import uvloop

from kit.errors import UserError
from kit.load.level import Level, quiet_collector
from kit.load.model import Endpoint, Request, RequestResult
from kit.load.workers import result_to_json, take_from


def _say(fd: int, message: dict[str, Any]) -> None:
    rest = memoryview(orjson.dumps(message) + b"\n")
    while rest:
        rest = rest[os.write(fd, rest) :]


async def _work(job: dict[str, Any], queue_fd: int, out_fd: int) -> None:
    def tell(result: RequestResult) -> None:
        _say(out_fd, {"kind": "result", **result_to_json(result)})

    closed = "slots" in job
    level = Level(
        Endpoint(**job["endpoint"]),
        [Request(**r) for r in job["requests"]],
        job["timeout_s"],
        tell,
        next_index=(lambda: take_from(queue_fd)) if closed else None,
        slots=job.get("slots", 0),
        sends=[(at, i) for at, i in job.get("sends", ())],
    )
    await level.prepare()
    _say(out_fd, {"kind": "ready"})
    # Nothing else happens in this loop yet, so a blocking read is the barrier.
    start = orjson.loads(sys.stdin.buffer.readline())
    with quiet_collector():
        await level.run(start["zero_ns"])
    _say(out_fd, {"kind": "vitals", **asdict(level.vitals)})


def main() -> int:
    """Do one job."""
    queue_fd, out_fd = int(sys.argv[1]), sys.stdout.fileno()
    job = orjson.loads(sys.stdin.buffer.readline())
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_work(job, queue_fd, out_fd))
    except UserError as error:
        _say(out_fd, {"kind": "error", "sentence": error.sentence, "remedy": error.remedy})
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
