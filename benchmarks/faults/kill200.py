"""Kill runs at random instants, take them up again, and say what was found.

    python -m benchmarks.faults.kill200 [--count 200] [--seed 9] [--what attached|own|server]

attached: the kit is killed, the stub server is somebody else's. own: the kit is killed, the server is its own.
server: the server is killed. Each kill checks what is left and what the resumed run becomes
(``tests/faults/kills.py``); a check that fails ends the script with a traceback.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tests.faults.bench import Bench
from tests.faults.kills import many_kills


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=9)
    parser.add_argument("--what", choices=["attached", "own", "server"], action="append")
    args = parser.parse_args()
    for what in args.what or ["attached", "own", "server"]:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(Path(folder) / "bench")
            begun = time.monotonic()
            tally = many_kills(
                bench,
                args.count,
                args.seed,
                victim="server" if what == "server" else "kit",
                attach=what == "attached",
            )
            left = bench.left()
            bench.close()
        print(
            f"{what}: {tally.text()}; left behind: {left or 'nothing'}; {time.monotonic() - begun:.0f} s"
        )


if __name__ == "__main__":
    main()
