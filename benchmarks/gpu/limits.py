"""How far each level is from the GPU's memory bandwidth.

    python3 benchmarks/gpu/limits.py RUN --bandwidth 4.3

A decode step cannot be faster than the time to read what it must read: the weights once, and each running request's
KV cache. For speculation a step is one verification by the target and three passes of the draft. Printed is the time
that these bytes take at the measured copy bandwidth (TB/s, read and write counted) over the measured step time.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean
from typing import Any

from kit.runfolder import read_run

BYTES = 2  # bfloat16
THRESHOLD = "--speculative-disable-batch-threshold"


def layer_bytes(pair: dict[str, Any], inputs: int, kv: int) -> int:
    """Return the bytes of one layer's weights; its attention takes ``inputs`` × hidden, and keys are ``kv`` wide."""
    hidden, inner = pair["hidden"], pair["intermediate"]
    attention = inputs * hidden * (hidden + 2 * kv) + hidden * hidden
    return BYTES * (attention + 3 * hidden * inner)


def step_bytes(pair: dict[str, Any], running: float, context: float, draft_steps: int) -> float:
    """Return the bytes that one step must read.

    Args:
        pair: The planted pair's spec as in a run's manifest.
        running: Requests in the batch.
        context: Mean length of a request, in tokens.
        draft_steps: Passes of the draft a step, 0 for the baseline.
    """
    hidden = pair["hidden"]
    head = BYTES * hidden * pair["vocab"]
    kv = hidden // pair["heads"] * pair["kv_heads"]
    tokens = running * context
    target = pair["layers"] * (layer_bytes(pair, 1, kv) + tokens * BYTES * 2 * kv) + head
    # The draft's attention has as many key heads as heads.
    draft = layer_bytes(pair, 2, hidden) + head + tokens * BYTES * 2 * hidden
    # Three captured hidden states become one, once a step.
    return target + draft_steps * draft + (BYTES * 3 * hidden * hidden if draft_steps else 0)


def main() -> None:
    """Print one line a scenario and level."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--bandwidth", type=float, required=True, help="TB/s")
    args = parser.parse_args()
    run = read_run(args.run)
    plan, pair = run.manifest.plan, run.manifest.pair
    # Over a request's life its context grows evenly from the prompt to prompt and answer.
    context = plan.input_tokens + plan.output_tokens / 2
    print("| scenario | C | step ms | bytes a step, GB | at bandwidth, ms | share of the limit |")
    print("|---|---|---|---|---|---|")
    for name in run.scenarios():
        recorded = run.manifest.scenarios[name]
        spec, argv = recorded.get("speculative"), recorded["argv"]
        plain_above = int(argv[argv.index(THRESHOLD) + 1]) if THRESHOLD in argv else None
        for level in plan.levels:
            records = [r for r in run.measured(name, level) if r.step_time_s]
            if not records:
                continue
            step = fmean(r.step_time_s or 0 for r in records)
            running = fmean(r.effective_concurrency for r in records)
            drafts = spec["num_steps"] if spec and level <= (plain_above or level) else 0
            size = step_bytes(pair, running, context, drafts)
            limit = size / (args.bandwidth * 1e12)
            print(
                f"| {name} | {level} | {step * 1e3:.2f} | {size / 1e9:.1f} | {limit * 1e3:.2f} | "
                f"{limit / step:.0%} |"
            )


if __name__ == "__main__":
    main()
