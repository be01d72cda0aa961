"""Measure one running SGLang server with this client and with sglang.bench_serving, in turn, and compare.

    python cross_check.py --url http://127.0.0.1:30000 --streams 4 --requests 48 --tokens 96 --rounds 5

Both send the same token ids to ``/generate`` as streams. The server needs a tokenizer: bench_serving takes an event
without text for no token. Each client's first round warms the server up and is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
FIGURES = (
    ("tok_s", "output tok/s", 1.0),
    ("ttft_s", "mean TTFT, ms", 1e3),
    ("itl_s", "mean ITL, ms", 1e3),
)


def start(args: argparse.Namespace, name: str) -> subprocess.Popen[str]:
    other = name.startswith("sglang")
    env = {**os.environ, "PYTHONPATH": args.pythonpath} if other and args.pythonpath else None
    command = [
        args.python if other else sys.executable, str(HERE / "drivers.py"), name, "--on-demand", "--url", args.url,
        "--streams", str(args.streams), "--requests", str(args.requests), "--tokens", str(args.tokens),
    ]  # fmt: skip
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env
    )  # fmt: skip


def level(driver: subprocess.Popen[str]) -> dict[str, float]:
    assert driver.stdin is not None
    assert driver.stdout is not None
    driver.stdin.write("go\n")
    driver.stdin.flush()
    line = driver.stdout.readline()
    if not line:
        raise SystemExit("a driver ended early")
    value: dict[str, float] = json.loads(line)
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--python", default=sys.executable, help="interpreter that has sglang")
    parser.add_argument(
        "--pythonpath", default="", help="for that interpreter, where a CPU run needs stand-ins"
    )
    args = parser.parse_args()
    seen: dict[str, list[dict[str, float]]] = {"kit-generate": [], "sglang-generate": []}
    drivers = {name: start(args, name) for name in seen}
    for turn in range(args.rounds + 1):
        # A B, B A, …: a drift of the server does not favour one of them.
        for name in sorted(seen, reverse=bool(turn % 2)):
            told = level(drivers[name])
            if told["failed"]:
                raise SystemExit(f"{name}: {told['failed']} requests failed")
            if turn:
                seen[name].append(told)
    for driver in drivers.values():
        driver.communicate(timeout=60)
    print(
        "| figure | this client | spread | bench_serving | spread | difference |\n|---|---|---|---|---|---|"
    )
    for key, title, unit in FIGURES:
        cells, means = [title], []
        for rows in seen.values():
            values = [row[key] * unit for row in rows]
            means.append(statistics.fmean(values))
            cells += [f"{means[-1]:.4g}", f"±{statistics.stdev(values) / means[-1]:.1%}"]
        print("| " + " | ".join([*cells, f"{means[0] / means[1] - 1:+.1%}"]) + " |")


if __name__ == "__main__":
    main()
