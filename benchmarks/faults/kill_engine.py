"""Kill runs on the real CPU engine at random instants and take them up again.

    python -m benchmarks.faults.kill_engine [--count 10] [--seed N] [--longest 17]

The kit and its server are killed in turn: twice at a random instant after the start, when the server is most often
still loading, then twice once a random number of requests was answered, and so on. The seed is random and printed.
A check that fails ends the script with a traceback.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

from tests.faults.bench import free_port
from tests.faults.engine_kills import REQUESTS, EngineBench


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, help="default: another one each time")
    parser.add_argument("--longest", type=float, default=17, help="seconds after the start")
    args = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if args.seed is None else args.seed
    print(f"seed {seed}", flush=True)
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        bench = EngineBench(Path(folder), free_port())
        for n in range(args.count):
            victim = ("kit", "server")[n % 2]
            after = rng.randrange(1, REQUESTS) if n // 2 % 2 else 0
            print(f"{n + 1:3} {bench.kill_once(rng, (5, args.longest), victim, after)}", flush=True)


if __name__ == "__main__":
    main()
