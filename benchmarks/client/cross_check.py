"""Measure one SGLang server with this client and with sglang.bench_serving, in turn, and compare.

On the CPU rig, server included (about 3 minutes):

    python benchmarks/client/cross_check.py --serve spec-v2 --rig cpu --streams 2 --requests 16 --tokens 128 --rounds 10

On a GPU, with the server of the rig, or with one that runs already (``--url http://127.0.0.1:30000``):

    python benchmarks/client/cross_check.py --serve spec-v2 --rig h200 --streams 30 --requests 120 --rounds 8

Both send the same token ids to ``/generate`` as streams, in a closed loop. The server needs a tokenizer:
bench_serving takes an event without text for no token. A round is one level of each client, A B, then B A, so that a
drift of the server favours none of them; the first round warms both up and is left out. What is judged is the mean
over the rounds of the ratio within a round, with its 95 % interval (Student's t on the logarithms). bench_serving
must be importable by ``--python``, this interpreter by default; the packages of data sets it never opens are replaced.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from scipy.stats import t as student

from kit.cli.drive import served
from kit.sglang_plugin import cpu_environment

HERE = Path(__file__).resolve().parent
CLIENTS = ("kit-generate", "sglang-generate")
FIGURES = (
    ("tok_s", "output tok/s", 1.0),
    ("latency_s", "mean latency, ms", 1e3),
    ("ttft_s", "mean TTFT, ms", 1e3),
    ("itl_s", "mean ITL, ms", 1e3),
)
JUDGED = ("tok_s", "ttft_s", "itl_s")
WITHIN = 0.02


def ratio(a: list[float], b: list[float]) -> tuple[float, float]:
    """Return the mean of a/b over rounds, minus 1, and the half-width of its 95 % interval (as a factor, minus 1)."""
    logs = [math.log(x / y) for x, y in zip(a, b, strict=True)]
    if len(logs) < 2:
        return math.expm1(logs[0]), math.inf
    half = float(student.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.expm1(statistics.fmean(logs)), math.expm1(half)


def verdict(mean: float, half: float) -> str:
    """Say whether two clients agree within 2 %: shown, refuted, or not decided by these rounds."""
    low, high = (1 + mean) / (1 + half) - 1, (1 + mean) * (1 + half) - 1
    if low >= -WITHIN and high <= WITHIN:
        return "agree"
    return "differ" if low > WITHIN or high < -WITHIN else "not decided"


def start(args: argparse.Namespace, name: str, url: str) -> subprocess.Popen[str]:
    """Start the process of one client; it runs a level for each line it is sent."""
    env = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    if args.rig == "cpu" and name.startswith("sglang"):
        env |= cpu_environment()
    command = [
        args.python if name.startswith("sglang") else sys.executable, str(HERE / "drivers.py"), name, "--on-demand",
        "--url", url, "--streams", str(args.streams), "--requests", str(args.requests), "--tokens", str(args.tokens),
    ]  # fmt: skip
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL if not args.verbose else None,
        text=True, env=env,
    )  # fmt: skip


def level(driver: subprocess.Popen[str]) -> dict[str, float]:
    """Run one level; return what the client reports."""
    assert driver.stdin is not None
    assert driver.stdout is not None
    driver.stdin.write("go\n")
    driver.stdin.flush()
    line = driver.stdout.readline()
    if not line:
        raise SystemExit("a client ended early; --verbose shows why")
    value: dict[str, float] = json.loads(line)
    if value["failed"]:
        raise SystemExit(f"{value['failed']} requests failed")
    return value


def compare(args: argparse.Namespace, url: str) -> dict[str, list[dict[str, float]]]:
    """Run all rounds; return the levels of each client."""
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in CLIENTS}
    with contextlib.ExitStack() as stack:
        drivers = {}
        for name in CLIENTS:
            drivers[name] = start(args, name, url)
            stack.callback(drivers[name].wait)
            stack.callback(drivers[name].kill)
        for turn in range(args.rounds + 1):
            for name in CLIENTS if turn % 2 else CLIENTS[::-1]:
                told = level(drivers[name])
                if turn:
                    seen[name].append(told)
                print(
                    f"round {turn} {name:16} {told['tok_s']:8.1f} tok/s  TTFT {told['ttft_s'] * 1e3:7.2f}"
                    f"  ITL {told['itl_s'] * 1e3:6.3f} ms  CPU {told['cpu_s']:.3f} s",
                    file=sys.stderr,
                    flush=True,
                )
    return seen


def main() -> None:
    """Run and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--serve", metavar="SCENARIO", help="serve this scenario")
    parser.add_argument(
        "--rig", help="of the server; with cpu, bench_serving gets the rig's environment too"
    )
    parser.add_argument("--backend", default="process")
    parser.add_argument("--port", type=int, default=31790)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--python", default=sys.executable, help="interpreter that has sglang")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    if (args.url is None) == (args.serve is None):
        parser.error("give --url or --serve")
    with served(args.serve, args.rig, args.url, args.backend, args.port) as (url, _):
        seen = compare(args, url)
    ours, theirs = seen.values()
    print(f"{args.streams} streams, {args.requests} requests of {args.tokens} tokens, {args.rounds} rounds,"
          f" {os.cpu_count()} cores, bench_serving {theirs[0]['version']}, {time.strftime('%Y-%m-%d')}\n")  # fmt: skip
    print(
        "| figure | this client | spread | bench_serving | spread | difference | 95 % | within 2 % |"
    )
    print("|" + "---|" * 8)
    for key, title, unit in FIGURES:
        cells, columns = [title], []
        for rows in (ours, theirs):
            values = [row[key] * unit for row in rows]
            columns.append(values)
            spread = (
                statistics.stdev(values) / statistics.fmean(values) if len(values) > 1 else math.nan
            )
            cells += [f"{statistics.fmean(values):.4g}", f"±{spread:.1%}"]
        mean, half = ratio(*columns)
        cells += [f"{mean:+.2%}", f"±{half:.2%}", verdict(mean, half) if key in JUDGED else ""]
        print("| " + " | ".join(cells) + " |")
    share = [
        100 * statistics.fmean(r["cpu_s"] / r["wall_s"] for r in rows) for rows in (ours, theirs)
    ]
    print(f"| client CPU, % of a core | {share[0]:.2f} | | {share[1]:.2f} | | | | |")


if __name__ == "__main__":
    main()
