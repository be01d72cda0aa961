"""Cycle through the levels of a rig for a given time and look whether anything grows or slows down.

    python -m benchmarks.soak [--rig cpu] [--scenario spec-v2] [--minutes 120] [--out soak.jsonl]

One server, one client process; a cycle is one pass of every level. After each cycle: memory (proportional set size
where the kernel tells it, else resident) and open descriptors of the client and of all server processes, and the
throughput of each level. At the end: the slope of each against time by Theil and Sen's estimator with the 95 %
interval of its rank test (scipy.stats.theilslopes), per hour and as a share of the median. Flat means that the
whole interval is within 1 % an hour; an interval that holds 0 and is wider decides nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from scipy.stats import theilslopes

from kit import reproduce as pipeline
from kit.backends import leftovers
from kit.backends.process import ProcessBackend, ProcessServer
from kit.load import ClosedLoop, Endpoint, Request, run_level, summarize
from kit.planted import Plan
from kit.prompts import PromptSource
from kit.scenarios import load_rig, load_scenario

FLAT_SHARE_AN_HOUR = 0.01
# The first cycles warm up: allocators fill their pools, kernels are compiled.
WARM_CYCLES = 2


def memory_mib(pids: Iterable[int]) -> float:
    """Return the memory of processes, shared pages counted once."""
    total = 0
    for pid in pids:
        for name, key in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
            try:
                lines = Path(f"/proc/{pid}/{name}").read_text().splitlines()
            except OSError:
                continue
            found = [int(line.split()[1]) for line in lines if line.startswith(key)]
            if found:
                total += found[0]
                break
    return total / 1024


def descriptors(pids: Iterable[int]) -> int:
    """Return how many files and sockets processes have open."""
    count = 0
    for pid in pids:
        try:
            count += len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208
        except OSError:
            continue
    return count


def cycle(
    server: ProcessServer, prompts: PromptSource, levels: list[int], rig: Any, plan: Plan
) -> dict[str, Any]:
    """Run every level once and look at both sides."""
    row: dict[str, Any] = {"wrong": 0, "failed": 0}
    for level in levels:
        ids = prompts.measured(level, rig.load.requests_at(level))
        requests = [Request(i, rig.load.output_tokens, prompt_ids=p) for i, p in enumerate(ids)]
        result = run_level(
            Endpoint(server.base_url),
            requests,
            ClosedLoop(level),
            timeout_s=rig.load.request_timeout_s,
        )
        row[f"tok_s C={level}"] = summarize(result).tok_s
        row["failed"] += sum(r.error is not None for r in result.results)
        row["wrong"] += sum(
            plan.first_mismatch(ids[r.index], r.output_ids) is not None
            for r in result.results
            if r.output_ids is not None
        )
    pids = leftovers.marked(server.mark)
    row["server MiB"] = memory_mib(pids)
    row["server descriptors"] = descriptors(pids)
    row["client MiB"] = memory_mib([os.getpid()])
    row["client descriptors"] = descriptors([os.getpid()])
    return row


def slopes(rows: list[dict[str, Any]]) -> list[str]:
    """Return a line for each figure: median, slope an hour with interval, and whether it is flat."""
    rows = rows[WARM_CYCLES:]
    hours = [r["t_s"] / 3600 for r in rows]
    lines = []
    for name in rows[0]:
        if name in ("t_s", "wrong", "failed"):
            continue
        values = [r[name] for r in rows]
        middle = median(values)
        slope, _, low, high = theilslopes(values, hours, 0.95)
        share = slope / middle if middle else 0.0
        bound = FLAT_SHARE_AN_HOUR * middle
        flat = -bound <= low and high <= bound
        word = "flat" if flat else "undecided" if low <= 0 <= high else "CHANGES"
        lines.append(
            f"{name:20} median {middle:10.1f}  slope {slope:+9.2f}/h [{low:+.2f}, {high:+.2f}] "
            f"= {share:+.1%}/h  {word}"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rig", default="cpu")
    parser.add_argument("--scenario", default="spec-v2")
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--port", type=int, default=30100)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    rig = load_rig(args.rig)
    models = pipeline.ensure_pair(rig, print)
    assert models.plan_dir is not None, "a rig with a planted pair is needed"
    plan = Plan.load(Path(models.plan_dir))
    prompts = PromptSource.planted(plan, rig.load.input_tokens)
    command = pipeline.command_for(load_scenario(args.scenario), rig, models, args.port)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "soak.log"
        with ProcessBackend(port=args.port).serve(
            command, log, rig.server.startup_timeout_s
        ) as server:
            begun = time.monotonic()
            while time.monotonic() - begun < args.minutes * 60:
                row = cycle(server, prompts, rig.load.levels, rig, plan)
                rows.append({"t_s": time.monotonic() - begun, **row})
                if args.out:
                    with args.out.open("a") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
            mib = log.stat().st_size / 2**20
    requests = len(rows) * sum(rig.load.requests_at(c) for c in rig.load.levels)
    print(
        f"{len(rows)} cycles, {requests} requests in {rows[-1]['t_s'] / 60:.1f} min; server log {mib:.1f} MiB"
    )
    print(
        f"failed {sum(r['failed'] for r in rows)}, not the planted output {sum(r['wrong'] for r in rows)}"
    )
    print(f"without the first {WARM_CYCLES} cycles:")
    print("\n".join(slopes(rows)))


if __name__ == "__main__":
    main()
