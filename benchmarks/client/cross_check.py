"""Measure one SGLang server with this client and with sglang.bench_serving, in turns, and compare.

On the CPU rig, server included (about 4 minutes):

    python benchmarks/client/cross_check.py --serve spec-v2 --rig cpu --streams 2 --requests 6 --tokens 128 \\
        --rounds 34 --seconds 300

On a GPU, with the server of the rig, or with one that runs already:

    python benchmarks/client/cross_check.py --url http://127.0.0.1:30000 --streams 30 --requests 120 --rounds 8

Both send the same token ids to ``/generate`` as streams, in a closed loop. The server needs a tokenizer:
bench_serving takes an event without text for no token. A round is one level of each client, A B, then B A, so that a
drift of the server favours none of them; a shorter first round warms both up and is left out. What is judged is the
median over the rounds of the ratio within a round, with its 95 % interval. bench_serving must be importable by
``--python``, this interpreter by default; the packages of data sets it never opens are replaced.

Exit code: 0 when all judged figures agree, 1 when one differs, 4 when the rounds do not decide, 2 when nothing could
be measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, NoReturn

from agreement import DEFINITIONS, FIGURES, Comparison, Row, cache_note, compare, verdict_line

from kit.cli.drive import served
from kit.runfolder import write_atomic
from kit.sglang_plugin import cpu_environment

HERE = Path(__file__).resolve().parent
CLIENTS = ("kit-generate", "sglang-generate")
# Importing bench_serving and what it needs, from a cold disk.
START_S = 90.0
CODES = {"agree": 0, "differ": 1}


def stop(why: str) -> NoReturn:
    """End with a sentence."""
    print(why, file=sys.stderr, flush=True)
    raise SystemExit(2)


class Driver:
    """The process of one client; it runs a level for each line it is sent."""

    def __init__(self, args: argparse.Namespace, name: str, url: str) -> None:
        self.name = name
        self._said = b""
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed by close()
        ours = not name.startswith("sglang")
        env = {**os.environ}
        paths = [str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
        if args.rig == "cpu" and not ours:
            extra = cpu_environment()
            paths.insert(0, extra.get("PYTHONPATH", ""))
            env |= extra
        env["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
        command = [
            sys.executable if ours else args.python, str(HERE / "drivers.py"), name, "--on-demand", "--url", url,
            "--streams", str(args.streams), "--requests", str(args.requests), "--tokens", str(args.tokens),
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=env
        )

    def line(self, seconds: float) -> Row:
        """Return the next line it prints, parsed; the program ends if none comes in time."""
        assert self.process.stdout is not None
        until = time.monotonic() + seconds
        while b"\n" not in self._said:
            ready, _, _ = select.select(
                [self.process.stdout], [], [], max(0.0, until - time.monotonic())
            )
            piece = os.read(self.process.stdout.fileno(), 65536) if ready else None
            if piece is None:
                stop(f"{self.name} said nothing for {seconds:.0f} s.\n{self.errors()}")
            if not piece:
                stop(f"{self.name} ended early.\n{self.errors()}")
            self._said += piece
        told, _, self._said = self._said.partition(b"\n")
        value: Row = json.loads(told)
        return value

    def level(self, requests: int, seconds: float) -> Row:
        """Run one level; the program ends if it fails or takes longer than ``seconds``."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(b"%d\n" % requests)
            self.process.stdin.flush()
        except BrokenPipeError:
            stop(f"{self.name} ended early.\n{self.errors()}")
        told = self.line(seconds)
        if told["failed"]:
            stop(f"{told['failed']:.0f} requests of {self.name} failed.\n{self.errors()}")
        return told

    def errors(self) -> str:
        """Return the end of what it printed as errors."""
        self._errors.seek(0)
        return self._errors.read()[-2000:].decode("utf-8", "replace")

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._errors.close()


def show(turn: int, name: str, told: Row) -> None:
    """Print a level at once: what was measured must be there when the program is stopped."""
    print(
        f"round {turn} {name:16} {told['window_tok_s']:8.1f} tok/s"
        f"  TTFT {told.get('ttft_wire_s', told['ttft_s']) * 1e3:7.2f} ms"
        f"  ITL {told['itl_s'] * 1e3:6.3f} ms  CPU {told['cpu_s']:.3f} s",
        flush=True,
    )


class Check:
    """A cross-check while it runs.

    Attributes:
        seen: The levels of each client, whole rounds only.
    """

    def __init__(self, args: argparse.Namespace, ends_at: float) -> None:
        self.args = args
        self.ends_at = ends_at
        self.seen: dict[str, list[Row]] = {name: [] for name in CLIENTS}

    def run(self, url: str) -> None:
        """Measure as many rounds as were asked for and as the time allows."""
        with contextlib.ExitStack() as stack:
            drivers = {}
            for name in CLIENTS:
                drivers[name] = Driver(self.args, name, url)
                stack.callback(drivers[name].close)
            for driver in drivers.values():
                driver.line(min(START_S, self.left()))
            longest = 0.0
            for turn in range(self.args.rounds + 1):
                # Warming up: every stream once.
                requests = (
                    self.args.requests if turn else min(self.args.requests, self.args.streams)
                )
                begun = time.monotonic()
                if turn and 1.1 * longest > self.left():
                    print(f"stopped before round {turn}: no time is left for it", flush=True)
                    return
                told = {}
                for name in CLIENTS if turn % 2 else CLIENTS[::-1]:
                    told[name] = drivers[name].level(requests, self.left())
                    show(turn, name, told[name])
                took = time.monotonic() - begun
                longest = max(longest, took if turn else took * self.args.requests / requests)
                if turn:
                    for name in CLIENTS:
                        self.seen[name].append(told[name])
                    self.write()

    def left(self) -> float:
        """Seconds that are left."""
        return max(0.1, self.ends_at - time.monotonic())

    def compared(self) -> list[Comparison | None]:
        """Return all figures compared."""
        ours, theirs = self.seen.values()
        return [compare(figure, ours, theirs) for figure in FIGURES]

    def write(self) -> None:
        """Write everything so far, if asked to."""
        if self.args.out is None:
            return
        theirs = self.seen[CLIENTS[1]]
        compared = self.compared()
        value: dict[str, Any] = {
            "schema": 1,
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "streams": self.args.streams,
            "requests": self.args.requests,
            "tokens": self.args.tokens,
            "rounds_wanted": self.args.rounds,
            "cores": os.cpu_count(),
            "definitions": DEFINITIONS,
            "compared": [asdict(c) | {"verdict": c.verdict} for c in compared if c is not None],
            "verdict": verdict_line(compared, theirs),
            "rounds": self.seen,
        }
        # An infinite interval is no JSON.
        text = json.dumps(value, indent=1).replace("-Infinity", "null").replace("Infinity", "null")
        write_atomic(self.args.out, text.encode() + b"\n")

    def report(self) -> int:
        """Print the table and the verdict; return the exit code."""
        ours, theirs = self.seen.values()
        if not theirs:
            stop("No round was finished; give more --seconds or fewer --requests.")
        args, compared = self.args, self.compared()
        print(
            f"\n{args.streams} streams, {args.requests} requests of {args.tokens} tokens, {len(theirs)} rounds,"
            f" {os.cpu_count()} cores, bench_serving {theirs[0]['version']}, {time.strftime('%Y-%m-%d')}\n"
        )
        print(
            "| figure, median of rounds | this client | bench_serving | difference | within 2 % |"
        )
        print("|" + "---|" * 5)
        for c in compared:
            if c is not None:
                verdict = c.verdict if c.figure.judged else ""
                print(
                    f"| {c.figure.title} | {c.ours:.4g} | {c.theirs:.4g} | {c.words} | {verdict} |"
                )
        share = [
            100 * statistics.fmean(r["cpu_s"] / r["wall_s"] for r in rows)
            for rows in (ours, theirs)
        ]
        print(f"| client CPU, % of a core | {share[0]:.2f} | {share[1]:.2f} | | |")
        if note := cache_note(ours):
            print(f"\n{note}")
        line = verdict_line(compared, theirs)
        print(f"\n{DEFINITIONS}\n\nverdict: {line}", flush=True)
        return CODES.get(line.split()[0], 4)


def main() -> int:
    """Run and print a table."""
    begun = time.monotonic()
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
    parser.add_argument(
        "--seconds", type=float, default=90.0, help="without the start of a server; default 90"
    )
    parser.add_argument("--out", type=Path, help="JSON file, written after every round")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has sglang")
    args = parser.parse_args()
    if (args.url is None) == (args.serve is None):
        parser.error("give --url or --serve")
    if min(args.streams, args.requests, args.tokens, args.rounds) < 1 or args.seconds <= 0:
        parser.error("--streams, --requests, --tokens, --rounds and --seconds must be above 0")
    # Being stopped ends the children, and a server that was started here.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with served(args.serve, args.rig, args.url, args.backend, args.port) as (url, _):
        check = Check(args, (begun if args.url else time.monotonic()) + args.seconds)
        try:
            check.run(url)
        except SystemExit as error:
            # What whole rounds there are is worth more than nothing.
            if not check.seen[CLIENTS[1]] or error.code != 2:
                raise
    return check.report()


if __name__ == "__main__":
    sys.exit(main())
