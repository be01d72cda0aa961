"""What the server's own log says of one pass: requests running and queued, and its own step time. Pure.

SGLang 0.5.12.post1 writes a ``Decode batch`` line every 40 decode steps (``scheduler_metrics_mixin.py``); its
throughput is the tokens since the line before over the time since then. With ``--decode-log-interval 1``, as on the
``cpu`` rig, each line is one step, and concurrency, steps and step time of a whole pass follow from the log alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from kit.records import ServerFigures

_LINE = re.compile(
    r"Decode batch.*?#running-req: (?P<running>\d+),"
    r"(?:.*?accept len: (?P<accept>[\d.]+),)?"
    r".*?gen throughput \(token/s\): (?P<rate>[\d.]+), #queue-req: (?P<queue>\d+)"
)
_PREFILL = re.compile(r"Prefill batch.*?#running-req: (?P<running>\d+),")
_INTERVAL = "--decode-log-interval"
# Of one pass, read no more than this.
READ_LIMIT = 8 << 20
# Of a log that is followed, at once.
BLOCK = 1 << 20


def size(log: Path | None) -> int:
    """Return how long a log is now; 0 if there is none."""
    try:
        return log.stat().st_size if log else 0
    except OSError:
        return 0


def _from(log: Path, offset: int, limit: int) -> bytes:
    try:
        with log.open("rb") as file:
            file.seek(offset)
            return file.read(limit)
    except OSError:
        return b""


def since(log: Path | None, offset: int) -> str:
    """Return what a log grew by since it was ``offset`` bytes long, at most 8 MiB."""
    return _from(log, offset, READ_LIMIT).decode("utf-8", "replace") if log else ""


class Growth:
    """Reads what a log grew by since the call before.

    Args:
        log: The file; it need not exist yet.
        offset: How many bytes of it are passed over.
    """

    def __init__(self, log: Path, offset: int = 0) -> None:
        self._log = log
        self._offset = offset

    def read(self) -> bytes:
        """Return the next bytes, at most 1 MiB; none at the end or if the file cannot be read."""
        block = _from(self._log, self._offset, BLOCK)
        self._offset += len(block)
        return block


def every_step(argv: Sequence[str]) -> bool:
    """Return whether a server with these arguments logs each decode step; the last of two equal flags counts."""
    told = [b for a, b in pairwise(argv) if a == _INTERVAL]
    told += [a.partition("=")[2] for a in argv if a.startswith(_INTERVAL + "=")]
    return bool(told) and told[-1] == "1"


def figures(text: str, wall_s: float = 0.0, each: bool = False) -> ServerFigures | None:
    """Return what the ``Decode batch`` lines of one pass say; None without any.

    The step time is the mean over lines at the highest number of running requests whose line before had as many;
    the first line is left out, since its time began in the pass before.

    Args:
        text: The log of the pass.
        wall_s: Length of the pass, s.
        each: Each line is one decode step: then the figures of whole passes are filled in too.
    """
    lines = [m for m in map(_LINE.search, text.splitlines()) if m]
    if not lines:
        return None
    running = [int(m["running"]) for m in lines]
    most = max(running)
    steps = [
        now * float(m["accept"] or 1) / float(m["rate"])
        for before, now, m in zip(running, running[1:], lines[1:], strict=False)
        if before == now == most and float(m["rate"]) > 0
    ]
    queues = [int(m["queue"]) for m in lines]
    told = ServerFigures(
        lines=len(lines),
        running_mean=fmean(running),
        running_max=most,
        queue_max=max(queues),
        queue_mean=fmean(queues),
        step_time_s=fmean(steps) if steps else None,
    )
    return told.model_copy(update=_whole_pass(text, wall_s)) if each and wall_s > 0 else told


def _whole_pass(text: str, wall_s: float) -> dict[str, float]:
    """Return the figures that need a line a step.

    A step's length is the tokens of its line over its throughput. Where the server was idle before (its prefill found
    nothing running) the line's time began with the idleness, and the step is taken to be as long as the median.
    """
    lengths: list[float | None] = []
    counts: list[int] = []
    tokens = 0.0
    begun = idle = False
    for line in text.splitlines():
        if prefill := _PREFILL.search(line):
            begun = True
            idle = idle or prefill["running"] == "0"
        elif begun and (m := _LINE.search(line)):
            # What comes before the first prefill is a step of the pass before.
            n, accepted, rate = int(m["running"]), float(m["accept"] or 1), float(m["rate"])
            counts.append(n)
            tokens += n * accepted
            lengths.append(None if idle or rate <= 0 else n * accepted / rate)
            idle = False
    known = [s for s in lengths if s is not None]
    if not known:
        return {}
    usual = median(known)
    busy = sum(n * (usual if s is None else s) for n, s in zip(counts, lengths, strict=True))
    return {
        "concurrency": busy / wall_s,
        "mean_step_s": busy / sum(counts),
        "request_steps": sum(counts),
        "decoded_tokens": tokens,
    }
