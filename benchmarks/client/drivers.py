"""Drive one client in this process against a null server and print what it cost as JSON.

    python drivers.py CLIENT --url URL --streams N --requests N --tokens N

CPU time is taken around the level only: importing a client and summing its results up afterwards is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import resource
import statistics
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

from wire import Wire

PROMPT = "word " * 64


def prompt_ids(index: int, length: int = 64) -> list[int]:
    """Return token ids of a request, different for each and small enough for any vocabulary of 2,000."""
    return [10 + (31 * index + 7 * i * i) % 1900 for i in range(length)]


def rss_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def version_of(package: str) -> str:
    """Return the version of a package; it may be a folder on the path that was never installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get(package), "__version__", "unknown"))


def kit(args: argparse.Namespace, api: Literal["generate", "completions"]) -> dict[str, Any]:
    from kit.load import ClosedLoop, Endpoint, Request, run_level, summarize
    from kit.load.metrics import token_gaps

    if api == "generate":
        requests = [Request(i, args.tokens, prompt_ids=prompt_ids(i)) for i in range(args.requests)]
    else:
        requests = [Request(i, args.tokens, text=PROMPT) for i in range(args.requests)]
    begun = time.process_time()
    level = run_level(
        Endpoint(args.url, api, stream=True), requests, ClosedLoop(args.streams), timeout_s=600
    )
    cpu = time.process_time() - begun
    metrics = summarize(level)
    ttft = [(r.first_ns - r.send_ns) * 1e-9 for r in level.results if r.first_ns is not None]
    return {
        "version": version_of("kit"),
        "cpu_s": cpu,
        "tok_s": metrics.tok_s,
        # The window is first send to last end and the clock of a request is at the socket: as it is defined here.
        "window_tok_s": metrics.tok_s,
        "ttft_s": statistics.fmean(ttft),
        "ttft_wire_s": statistics.fmean(ttft),
        "itl_s": float(token_gaps(level.results).mean()),
        "latency_s": statistics.fmean((r.end_ns - r.send_ns) * 1e-9 for r in level.results),
        "wall_s": (level.end_ns - level.start_ns) * 1e-9,
        # Both clients send the same prompts: with a prefix cache the second would find what the first left there.
        "cached_tokens": metrics.cached_tokens,
        "failed": metrics.errors,
    }


def bench_serving() -> Any:
    """Import it."""
    try:
        importlib.import_module("datasets")
    except ImportError:
        # Imported at the top for data sets that are not used here; the CPU lock leaves the package out.
        stand_in: Any = ModuleType("datasets")
        stand_in.load_dataset = None
        stand_in.__spec__ = importlib.machinery.ModuleSpec("datasets", None)
        sys.modules["datasets"] = stand_in
    from sglang import bench_serving as bench

    return bench


def sglang(args: argparse.Namespace, backend: str) -> dict[str, Any]:
    """``sglang.bench_serving``: its own ``benchmark`` coroutine, as its command line calls it."""
    bench = bench_serving()
    from sglang.benchmark.datasets.common import DatasetRow

    class Args(SimpleNamespace):
        def __getattr__(self, _: str) -> Any:
            return False  # every option that is not set below is off

    bench.set_global_args(
        Args(
            token_ids_logprob=None, logprob_start_len=-1, warmup_requests=0, output_file=os.devnull,
            dataset_name="custom", backend=backend, sharegpt_output_len=None, random_input_len=None,
            random_output_len=None, random_range_ratio=None, tag=None, num_prompts=args.requests,
        )
    )  # fmt: skip
    tokenizer = SimpleNamespace(encode=lambda text, **_: text.split())
    ended: list[float] = []
    seen: list[Any] = []
    whole = getattr(bench, "kit_whole", bench.calculate_metrics)
    bench.kit_whole = whole  # another level in this process finds the original

    def count(*a: Any, **k: Any) -> Any:
        ended.append(time.process_time())
        seen.extend(k["outputs"])
        return whole(*a, **k)

    bench.calculate_metrics = count
    # Only where times are compared: where CPU time is, bench_serving runs as it is.
    wire = Wire() if args.on_demand else None
    if wire is not None:
        session = getattr(bench, "kit_session", bench._create_bench_client_session)
        bench.kit_session = session
        bench._create_bench_client_session = lambda: wire.watch(session())
        # It pauses for a second before each level, of which a lent machine has few.
        bench.time = SimpleNamespace(
            perf_counter=time.perf_counter, time=time.time, sleep=lambda _: None
        )
    path = "/generate" if backend == "sglang" else "/v1/completions"
    ids = backend == "sglang"
    rows = [
        DatasetRow(
            prompt=prompt_ids(i) if ids else PROMPT, prompt_len=64, output_len=args.tokens,
            extra_request_body={},
        )
        for i in range(args.requests)
    ]  # fmt: skip
    real, sys.stdout = sys.stdout, sys.stderr
    begun = time.process_time()
    result = asyncio.run(
        bench.benchmark(
            backend=backend, api_url=args.url + path, base_url=args.url, model_id="null",
            tokenizer=tokenizer, input_requests=rows, request_rate=float("inf"),
            max_concurrency=args.streams, disable_tqdm=True, lora_names=[],
            lora_request_distribution=None, lora_zipf_alpha=None, extra_request_body={}, profile=False,
            warmup_requests=0,
        )
    )  # fmt: skip
    sys.stdout = real
    if wire is not None:
        wire.stop()
    span = max(o.start_time + o.latency for o in seen) - min(o.start_time for o in seen)
    return {
        "version": version_of("sglang"),
        "cpu_s": ended[0] - begun,
        "tok_s": result["output_throughput"],
        # Its own window also holds the making of tasks and a request for the server's state at the end.
        "window_tok_s": sum(o.output_len for o in seen) / span,
        **(wire.split(seen) if wire is not None else {}),
        "ttft_s": result["mean_ttft_ms"] * 1e-3,
        "itl_s": result["mean_itl_ms"] * 1e-3,
        "latency_s": result["mean_e2e_latency_ms"] * 1e-3,
        "wall_s": result["duration"],
        "failed": args.requests - result["completed"],
    }


def vllm(args: argparse.Namespace) -> dict[str, Any]:
    """vLLM's request function in the loop of ``vllm bench serve`` (serve.py: one session, a semaphore, gather).

    The file is loaded by itself: importing the package would want CUDA.
    """
    import aiohttp

    file = args.site / "vllm/benchmarks/lib/endpoint_request_func.py"
    spec = importlib.util.spec_from_file_location("vllm_request_func", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)

    async def main() -> tuple[list[Any], float, float]:
        connector = aiohttp.TCPConnector(
            limit=args.streams, limit_per_host=args.streams, keepalive_timeout=60, ssl=False
        )
        semaphore = asyncio.Semaphore(args.streams)
        async with aiohttp.ClientSession(
            connector=connector, trust_env=True, timeout=module.AIOHTTP_TIMEOUT
        ) as session:

            async def one() -> Any:
                async with semaphore:
                    asked = module.RequestFuncInput(
                        prompt=PROMPT, api_url=args.url + "/v1/completions", prompt_len=64,
                        output_len=args.tokens, model="null", ignore_eos=True,
                    )  # fmt: skip
                    return await module.async_request_openai_completions(asked, session)

            begun, cpu = time.perf_counter(), time.process_time()
            outputs = await asyncio.gather(
                *(asyncio.create_task(one()) for _ in range(args.requests))
            )
            return outputs, time.perf_counter() - begun, time.process_time() - cpu

    outputs, wall, cpu = asyncio.run(main())
    good = [o for o in outputs if o.success]
    version = next(args.site.glob("vllm-*.dist-info")).name.split("-")[1].removesuffix(".dist")
    return {
        "version": version,
        "cpu_s": cpu,
        "tok_s": sum(o.output_tokens for o in good) / wall,
        "ttft_s": statistics.fmean(o.ttft for o in good),
        "failed": len(outputs) - len(good),
    }


def lean_aiohttp(args: argparse.Namespace) -> dict[str, Any]:
    """The leanest client that aiohttp allows: uvloop, one session, large reads, orjson; kit's first version."""
    import aiohttp
    import orjson
    import uvloop

    body = orjson.dumps(
        {
            "input_ids": list(range(1, 65)), "stream": True,
            "sampling_params": {"temperature": 0, "max_new_tokens": args.tokens, "ignore_eos": True},
        }
    )  # fmt: skip

    async def main() -> tuple[int, list[float], float, float]:
        tokens, ttft, left = 0, [], iter(range(args.requests))
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), read_bufsize=1 << 20, auto_decompress=False,
            headers={"Content-Type": "application/json"},
        ) as session:  # fmt: skip

            async def slot() -> None:
                nonlocal tokens
                for _ in left:
                    sent, rest, first, count = time.perf_counter(), b"", 0.0, 0
                    async with session.post(args.url + "/generate", data=body) as reply:
                        async for piece in reply.content.iter_any():
                            at = time.perf_counter()
                            *events, rest = (rest + piece).split(b"\n\n")
                            for event in events:
                                if event == b"data: [DONE]":
                                    continue
                                count = orjson.loads(event[6:])["meta_info"]["completion_tokens"]
                                first = first or at
                    tokens += count
                    ttft.append(first - sent)

            begun, cpu = time.perf_counter(), time.process_time()
            await asyncio.gather(*(slot() for _ in range(args.streams)))
            return tokens, ttft, time.perf_counter() - begun, time.process_time() - cpu

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        tokens, ttft, wall, cpu = runner.run(main())
    return {
        "version": importlib.metadata.version("aiohttp"),
        "cpu_s": cpu,
        "tok_s": tokens / wall,
        "ttft_s": statistics.fmean(ttft),
        "failed": args.requests - len(ttft),
    }


def main() -> None:
    clients = {
        "aiohttp-generate": lean_aiohttp,
        "kit": lambda a: kit(a, "completions"),
        "kit-generate": lambda a: kit(a, "generate"),
        "sglang": lambda a: sglang(a, "sglang-oai"),
        "sglang-generate": lambda a: sglang(a, "sglang"),
        "vllm": vllm,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("client", choices=clients)
    parser.add_argument("--url", required=True)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--site", type=Path, help="site-packages that hold vllm")
    parser.add_argument(
        "--on-demand",
        action="store_true",
        help="a level for each line of input, which may say how many requests",
    )
    args = parser.parse_args()
    if args.on_demand and args.client.startswith("sglang"):
        bench_serving()  # takes many seconds; meanwhile the other client starts too
    if args.on_demand:
        print("{}", flush=True)
    for line in sys.stdin if args.on_demand else [""]:
        args.requests = int(line.strip() or args.requests)
        found = clients[args.client](args)
        print(json.dumps({**found, "rss_mib": rss_mib()}), flush=True)


if __name__ == "__main__":
    main()
