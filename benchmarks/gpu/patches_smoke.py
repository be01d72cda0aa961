"""Do the patches do on this machine what they should? Exactness, verify steps against the plan, tokens a second.

    python3 benchmarks/gpu/patches_smoke.py --rig h200 --layers 16 --levels 1,8,30,100
    python3 benchmarks/gpu/patches_smoke.py --rig h200 --layers 16 --no-graphs --only spec-v2-threshold

Serves the scenarios one after another, each level twice (the first pass warms up), then sends bursts into running
requests so that the batch crosses the threshold both ways. ``plan`` is what the planted pair demands without a
threshold; above it a plain step makes one token. Exit code 1 where an output is wrong, or where steps are not the
planned ones (not for spec-v1 as released, nor above the threshold).
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kit import reproduce as pipeline
from kit.backends.base import http_json
from kit.backends.process import ProcessBackend
from kit.planted import PairSpec, Plan, make_pair
from kit.scenarios import ModelPaths, Rig, load_rig, load_scenario, plain_above

SCENARIOS = ("spec-v2-threshold", "spec-v1-fixed", "spec-v2", "spec-v1", "baseline")
# A request's last step may be counted or not where overlap launches one more: a thousandth is no deviation.
SLACK = 0.002


class Client:
    """Sends prompts to one server and compares with the plan."""

    def __init__(self, url: str, plan: Plan, spec: tuple[int, int, int] | None) -> None:
        self.url, self.plan, self.spec = url, plan, spec

    def one(self, prompt: list[int], tokens: int) -> dict[str, Any]:
        params = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        body = {"input_ids": prompt, "sampling_params": params}
        reply: dict[str, Any] = http_json(f"{self.url}/generate", body, 300)
        return reply

    def wrong(self, prompts: list[list[int]], replies: list[dict[str, Any]], tokens: int) -> int:
        return sum(
            len(r["output_ids"]) != tokens
            or self.plan.first_mismatch(p, r["output_ids"]) is not None
            for p, r in zip(prompts, replies, strict=True)
        )

    def level(self, c: int, tokens: int, seed: int) -> tuple[float, int, float, float]:
        """Return tokens a second, wrong outputs, accept length and the planned one (0 without speculation)."""
        prompts = [self.plan.prompt(seed + i, 64) for i in range(max(16, 2 * c))]
        begin = time.monotonic()
        with ThreadPoolExecutor(c) as pool:
            replies = list(pool.map(lambda p: self.one(p, tokens), prompts))
        took = time.monotonic() - begin
        made = tokens * len(prompts)
        steps = sum(r["meta_info"].get("spec_verify_ct", 0) for r in replies)
        planned = (
            sum(self.plan.verify_steps(p, tokens, *self.spec) for p in prompts) if self.spec else 0
        )
        return (
            made / took,
            self.wrong(prompts, replies, tokens),
            made / steps if steps else 0.0,
            made / planned if planned else 0.0,
        )

    def crossing(self, threshold: int, tokens: int) -> tuple[int, list[int], list[int]]:
        """Send a burst into running requests. Return wrong outputs, and steps taken and planned by the long ones."""
        long = [self.plan.prompt(90_000 + i, 64) for i in range(max(1, threshold // 2))]
        burst = [self.plan.prompt(95_000 + i, 16) for i in range(2 * threshold)]
        wrong = 0
        with ThreadPoolExecutor(len(long) + len(burst)) as pool:
            running = [pool.submit(self.one, p, 5 * tokens) for p in long]
            for _ in range(3):
                time.sleep(0.3)
                short = [pool.submit(self.one, p, tokens // 4) for p in burst]
                wrong += self.wrong(burst, [s.result() for s in short], tokens // 4)
            replies = [r.result() for r in running]
        assert self.spec is not None
        taken = [r["meta_info"]["spec_verify_ct"] for r in replies]
        planned = [self.plan.verify_steps(p, 5 * tokens, *self.spec) for p in long]
        return wrong + self.wrong(long, replies, 5 * tokens), taken, planned


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def smoke(name: str, rig: Rig, pair: Path, args: argparse.Namespace) -> bool:
    """Serve one scenario and print a line a level. Returns whether all is as it must be."""
    scenario = load_scenario(name)
    models = ModelPaths(target=str(pair / "target"), draft=str(pair / "draft"), plan_dir=str(pair))
    port = free_port()
    command = pipeline.command_for(scenario, rig, models, port)
    threshold = plain_above(scenario, rig)
    extra = ["--disable-cuda-graph"] if args.no_graphs else []
    if threshold is not None and args.threshold:
        threshold = args.threshold
        extra += ["--speculative-disable-batch-threshold", str(threshold)]
    command = command.model_copy(update={"argv": [*command.argv, *extra]})
    log = args.out / f"{name}.log"
    fine = True
    s = scenario.speculative
    spec = (s.topk, s.num_steps, s.num_draft_tokens) if s else None
    with ProcessBackend(port=port).serve(command, log, rig.server.startup_timeout_s) as server:
        client = Client(server.base_url, Plan.load(pair), spec)
        for c in args.levels:
            for seed in (1_000 * c, 1_000_000 + 1_000 * c):
                tok_s, wrong, got, plan = client.level(c, args.tokens, seed)
            plain = threshold is not None and c > threshold
            as_planned = not spec or plain or got >= plan * (1 - SLACK)
            must = name not in ("spec-v1", "spec-v1-topk1") and not plain
            fine &= wrong == 0 and (as_planned or not must)
            words = " plain" if plain else "" if as_planned else "  NOT AS PLANNED"
            print(
                f"{name:18} C={c:<4} {tok_s:9.0f} tok/s  wrong {wrong}  accept {got:.3f} plan {plan:.3f}{words}",
                flush=True,
            )
        if threshold is not None:
            wrong, taken, planned = client.crossing(threshold, args.tokens)
            fine &= wrong == 0
            print(f"{name:18} crossing: wrong {wrong}, steps {taken[:6]}, plan {planned[:6]}")
    for line in dict.fromkeys(x for x in log.read_text("utf-8", "replace").splitlines()):
        if "kit 000" in line or "kit patches" in line:
            print(f"    {line[:160]}")
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rig", default="h200")
    parser.add_argument("--layers", type=int, help="of the pair; the rig's when left out")
    parser.add_argument("--levels", default="1,8,30,100")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--threshold", type=int, help="instead of the rig's")
    parser.add_argument("--only", action="append", choices=SCENARIOS)
    parser.add_argument("--no-graphs", action="store_true")
    parser.add_argument("--pair", type=Path, help="folder of the pair; made where there is none")
    parser.add_argument("--out", type=Path, help="folder of the logs")
    args = parser.parse_args()
    args.levels = [int(c) for c in args.levels.split(",")]
    args.out = args.out or Path(tempfile.mkdtemp(prefix="patches-smoke-"))
    args.out.mkdir(parents=True, exist_ok=True)
    rig = load_rig(args.rig)
    spec = pipeline.pair_spec(rig)
    assert isinstance(spec, PairSpec)
    if args.layers:
        spec = spec.model_copy(update={"layers": args.layers})
    pair = make_pair(spec, args.pair or args.out / "pair")
    results = [smoke(name, rig, pair, args) for name in args.only or SCENARIOS]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
