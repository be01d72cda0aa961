"""Kill runs on the real CPU engine at random instants and take them up again.

    python -m benchmarks.faults.kill_engine [--count 10] [--seed 9] [--longest 17]

The kit and its server are killed in turn. A check that fails ends the script with a traceback.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

from tests.faults.bench import free_port
from tests.faults.engine_kills import EngineBench


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=9)
    parser.add_argument("--longest", type=float, default=17, help="seconds after the start")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        bench = EngineBench(Path(folder), free_port())
        for n in range(args.count):
            victim = ("kit", "server")[n % 2]
            print(f"{n + 1:3} {bench.kill_once(rng, (5, args.longest), victim)}", flush=True)


if __name__ == "__main__":
    main()
