"""Print one virtual processor of each physical core, as ``taskset -c`` takes them.

    taskset -c $(python3 benchmarks/gpu/cores.py) kit reproduce

Two busy threads on one core slow each other by a third to a half, and a virtual machine's scheduler may not know
which of its processors share a core. So it is measured: a loop alone, then with the same loop on another processor.
A machine where nothing slows anything has all of its processors printed.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from multiprocessing.synchronize import Event
from statistics import median

WINDOW_S = 0.04
TRIES = 3
# A loop that shares its core gets 50 to 70 % of it; one that only shares the clock, over 90 %.
SHARED_BELOW = 0.8


def spin(seconds: float) -> float:
    """Return how many rounds a second this thread makes."""
    begun = time.perf_counter()
    ends, rounds = begun + seconds, 0
    while time.perf_counter() < ends:
        for _ in range(200):
            rounds += 1
    return rounds / (time.perf_counter() - begun)


def neighbour(cpu: int, on: Event, off: Event) -> None:
    """Keep ``cpu`` busy until told to stop."""
    os.sched_setaffinity(0, {cpu})
    on.set()
    while not off.is_set():
        spin(0.002)


def pace_beside(other: int) -> float:
    """Return this thread's pace while ``other`` is busy."""
    on, off = multiprocessing.Event(), multiprocessing.Event()
    process = multiprocessing.Process(target=neighbour, args=(other, on, off))
    process.start()
    on.wait()
    beside = median(spin(WINDOW_S) for _ in range(TRIES))
    off.set()
    process.join()
    return beside


def main() -> int:
    """Print the list; what was measured goes to standard error."""
    left = sorted(os.sched_getaffinity(0))
    kept: list[int] = []
    while left:
        cpu = left.pop(0)
        kept.append(cpu)
        # A sibling is most often the next one or the one half of all away: the worst of all is taken, and only one.
        os.sched_setaffinity(0, {cpu})
        alone = max(spin(WINDOW_S) for _ in range(TRIES))
        shares = {other: pace_beside(other) / alone for other in left}
        if shares:
            other = min(shares, key=lambda o: shares[o])
            print(f"{cpu}: {other} leaves it {shares[other]:.0%}", file=sys.stderr)
            if shares[other] < SHARED_BELOW:
                left.remove(other)
    print(",".join(map(str, kept)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
