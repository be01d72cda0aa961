"""Drive the same null server and workload with several clients and print a table.

    python compare.py --streams 100 --rounds 3 --python sglang=/path/to/python --vllm-site /path/to/site-packages \\
        --aiperf /path/to/aiperf --guidellm /path/to/guidellm --tokenizer /path/to/tokenizer

The server has the last core to itself, a client all the others. Every client sends the same requests: closed loop,
64 prompt tokens, ``--tokens`` output tokens in events of one, one event every ``--interval-ms``. CPU time:

- clients that can be called as a library (kit, sglang, vllm) are measured around the level (drivers.py);
- whole programs (AIPerf, guidellm) are run twice, with one round of requests and with ``--rounds``; what the second
  run took more, over the events that it had more, is the cost of an event, whatever starting up costs.

Bias is what the client reports against what the server counted itself. Peak memory is that of all processes of the
client together.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from kit.load.nulldata import NullConfig, NullStats
from kit.load.nullserver import NullServer, null_server

HERE = Path(__file__).resolve().parent
LIBRARIES = ("kit", "kit-generate", "sglang", "sglang-generate", "vllm", "aiohttp-generate")


@dataclass
class Row:
    client: str
    version: str
    events_s: float
    us_per_event: float
    tok_bias: float
    ttft_bias_ms: float
    rss_mib: float
    failed: int

    def cells(self) -> list[str]:
        return [
            self.client,
            self.version,
            f"{self.events_s:,.0f}",
            f"{self.us_per_event:.1f}",
            f"{self.tok_bias:+.2%}",
            f"{self.ttft_bias_ms:+.2f}",
            f"{self.rss_mib:,.0f}",
            str(self.failed),
        ]


HEADS = [
    "client", "version", "events/s", "CPU µs an event", "throughput off", "TTFT off, ms", "peak MiB", "failed",
]  # fmt: skip


class Tree:
    """CPU time and memory of a process and all it starts, sampled."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._cpu: dict[int, float] = {}
        self.peak_mib = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.2):
            total = 0
            try:
                for process in [self._root, *self._root.children(recursive=True)]:
                    with process.oneshot():
                        times = process.cpu_times()
                        self._cpu[process.pid] = times.user + times.system
                        total += process.memory_info().rss
            except psutil.Error:
                continue
            self.peak_mib = max(self.peak_mib, total / 2**20)

    def stop(self) -> float:
        """Return the CPU seconds of all processes."""
        self._stop.set()
        self._thread.join()
        return sum(self._cpu.values())


def aiperf(args: argparse.Namespace, url: str, requests: int, out: Path) -> list[str]:
    return [
        args.aiperf, "profile", "--model", "m", "--url", url, "--endpoint-type", "completions", "--streaming",
        "--tokenizer", args.tokenizer, "--use-server-token-count", "--concurrency", str(args.streams),
        "--request-count", str(requests), "--isl", "64", "--osl", str(args.tokens), "--ui", "none",
        "--artifact-dir", str(out), "--extra-inputs", "ignore_eos:true", "--no-gpu-telemetry",
        "--no-server-metrics",
    ]  # fmt: skip


def read_aiperf(out: Path) -> dict[str, Any]:
    found = json.loads((out / "profile_export_aiperf.json").read_text())
    return {
        "version": found["aiperf_version"],
        "tok_s": found["output_token_throughput"]["avg"],
        "ttft_s": found["time_to_first_token"]["avg"] * 1e-3,
        "done": int(found["request_count"]["avg"]),
    }


def guidellm(args: argparse.Namespace, url: str, requests: int, out: Path) -> list[str]:
    return [
        args.guidellm, "run", "--backend",
        f"kind=openai_http,target={url},model=m,request_format=/v1/completions",
        "--profile", f"kind=concurrent,streams={args.streams}",
        "--constraint", f"kind=max_requests,count={requests}",
        "--tokenizer", f"kind=huggingface_auto,model={args.tokenizer}",
        "--data", f"kind=synthetic_text,prompt_tokens=64,output_tokens={args.tokens}",
        "--output", f"kind=json,path={out / 'report.json'}", "--disable-console",
    ]  # fmt: skip


def read_guidellm(out: Path) -> dict[str, Any]:
    found = json.loads((out / "report.json").read_text())
    metrics = found["benchmarks"][0]["metrics"]
    return {
        "version": found["metadata"]["guidellm_version"],
        "tok_s": metrics["output_tokens_per_second"]["successful"]["mean"],
        "ttft_s": metrics["time_to_first_token_ms"]["successful"]["mean"] * 1e-3,
        "done": metrics["request_totals"]["successful"],
    }


PROGRAMS: dict[str, tuple[Callable[..., list[str]], Callable[[Path], dict[str, Any]]]] = {
    "aiperf": (aiperf, read_aiperf),
    "guidellm": (guidellm, read_guidellm),
}


def on_other_cores(command: list[str], **more: Any) -> subprocess.Popen[bytes]:
    cores = sorted(os.sched_getaffinity(0))[:-1]
    return subprocess.Popen(
        command, preexec_fn=lambda: os.sched_setaffinity(0, cores), env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        **more,
    )  # fmt: skip


def row(name: str, told: dict[str, Any], stats: NullStats, cpu_us: float) -> Row:
    span = (stats.last_end_ns - stats.first_request_ns) * 1e-9
    return Row(
        name,
        told["version"],
        stats.events / span,
        cpu_us,
        told["tok_s"] / stats.tok_s - 1,
        (told["ttft_s"] - stats.mean_ttft_s) * 1e3,
        told["rss_mib"],
        told["failed"],
    )


def library(args: argparse.Namespace, name: str, server: NullServer) -> Row:
    python = dict(p.split("=", 1) for p in args.python).get(name.split("-")[0], sys.executable)
    requests = args.streams * args.rounds
    command = [
        python, str(HERE / "drivers.py"), name, "--url", server.url, "--streams", str(args.streams),
        "--requests", str(requests), "--tokens", str(args.tokens), "--site", args.vllm_site or ".",
    ]  # fmt: skip
    out, _ = on_other_cores(command, stdout=subprocess.PIPE).communicate(timeout=300)
    told = json.loads(out.splitlines()[-1])
    stats = server.stats()
    return row(name, told, stats, told["cpu_s"] * 1e6 / stats.events)


def program(args: argparse.Namespace, name: str, server: NullServer) -> Row:
    build, read = PROGRAMS[name]
    seen: list[tuple[float, int]] = []
    told: dict[str, Any] = {}
    stats = NullStats()
    for rounds in (1, args.rounds):
        server.reset()
        requests = args.streams * rounds
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder)
            process = on_other_cores(
                build(args, server.url, requests, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )  # fmt: skip
            tree = Tree(process.pid)
            code = process.wait(timeout=300)
            cpu = tree.stop()
            if code:
                raise SystemExit(f"{name} ended with {code}")
            told = read(out)
        stats = server.stats()
        seen.append((cpu, stats.events))
        told["rss_mib"] = tree.peak_mib
        told["failed"] = requests - told["done"]
    (cpu_a, events_a), (cpu_b, events_b) = seen
    return row(name, told, stats, (cpu_b - cpu_a) * 1e6 / (events_b - events_a))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--clients", nargs="+", default=["kit", "kit-generate"], choices=[*LIBRARIES, *PROGRAMS]
    )
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--interval-ms", type=float, default=20.0)
    parser.add_argument("--python", action="append", default=[], metavar="CLIENT=PATH")
    parser.add_argument("--vllm-site")
    parser.add_argument("--aiperf", default="aiperf")
    parser.add_argument("--guidellm", default="guidellm")
    parser.add_argument(
        "--tokenizer", help="folder of any Hugging Face tokenizer, for AIPerf and guidellm"
    )
    args = parser.parse_args()
    print(f"{args.streams} streams, an event every {args.interval_ms:g} ms each, {args.rounds} rounds,"
          f" {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}\n")  # fmt: skip
    print("| " + " | ".join(HEADS) + " |\n|" + "---|" * len(HEADS), flush=True)
    config = NullConfig(
        interval_ms=args.interval_ms,
        ttft_ms=args.interval_ms,
        cpu=sorted(os.sched_getaffinity(0))[-1],
    )
    for name in args.clients:
        with null_server(config) as server:
            found = (
                library(args, name, server) if name in LIBRARIES else program(args, name, server)
            )
        print("| " + " | ".join(found.cells()) + " |", flush=True)


if __name__ == "__main__":
    main()
