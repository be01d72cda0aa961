"""What the server's own log says of one pass: requests running and queued, and its own step time. Pure.

SGLang 0.5.12.post1 writes a ``Decode batch`` line every 40 decode steps (``scheduler_metrics_mixin.py``); its
throughput is the tokens since the line before over the time since then.
"""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean

from kit.records import ServerFigures

_LINE = re.compile(
    r"Decode batch.*?#running-req: (?P<running>\d+),"
    r"(?:.*?accept len: (?P<accept>[\d.]+),)?"
    r".*?gen throughput \(token/s\): (?P<rate>[\d.]+), #queue-req: (?P<queue>\d+)"
)
# Of one pass, read no more than this.
READ_LIMIT = 8 << 20


def size(log: Path | None) -> int:
    """Return how long a log is now; 0 if there is none."""
    try:
        return log.stat().st_size if log else 0
    except OSError:
        return 0


def since(log: Path | None, offset: int) -> str:
    """Return what a log grew by since it was ``offset`` bytes long, at most 8 MiB."""
    if log is None:
        return ""
    try:
        with log.open("rb") as file:
            file.seek(offset)
            return file.read(READ_LIMIT).decode("utf-8", "replace")
    except OSError:
        return ""


def figures(text: str) -> ServerFigures | None:
    """Return what the ``Decode batch`` lines of one pass say; None without any.

    The step time is the mean over lines at the highest number of running requests whose line before had as many;
    the first line is left out, since its time began in the pass before.
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
    return ServerFigures(
        lines=len(lines),
        running_mean=fmean(running),
        running_max=most,
        queue_max=max(int(m["queue"]) for m in lines),
        step_time_s=fmean(steps) if steps else None,
    )
