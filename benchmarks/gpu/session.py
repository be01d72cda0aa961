"""Everything that the kit says about one GPU, measured in one short lease of it.

    python3 benchmarks/gpu/session.py variants --out OUT --seconds 560
    python3 benchmarks/gpu/session.py containers --out OUT --seconds 400 --userland local/empty:latest

``variants`` starts baseline, spec-v1, spec-v1-fixed, spec-v2 and spec-v2-threshold together and measures them one
after another over all levels: one run folder. ``containers`` starts the three core scenarios anew, each as a process
and in a container, and measures both sides in turns: two run folders, and the container's cost as a ratio. Both
have their own launch, so the two runs of the core scenarios can be recorded as golden numbers together.

Servers that wait share the GPU's memory with the one that is measured, not its time (:mod:`pool`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from lockstep import TurnObserver, Turns, in_turns
from pool import PORT_STEP, Pool, PoolBackend, shared_gpu, start_scenarios, with_port
from userland import userland

from kit import reproduce as pipeline
from kit.backends.base import Backend
from kit.backends.compose import ComposeBackend
from kit.runfolder import read_run
from kit.scenarios import ModelPaths, Rig, ServerCommand, load_rig, load_scenario
from kit.sglang_plugin import cpu_environment
from kit.stats import ratio_ci

VARIANTS = ("baseline", "spec-v2-threshold", "spec-v2", "spec-v1-fixed", "spec-v1")
AIM = 0.02
BANDWIDTH = """
import torch
x = torch.empty(1 << 33, dtype=torch.uint8, device="cuda"); y = torch.empty_like(x)
best = 0.0
for _ in range(12):
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    a.record(); y.copy_(x); b.record(); torch.cuda.synchronize()
    best = max(best, 2 * x.numel() / a.elapsed_time(b) / 1e9)
print(f"copy bandwidth {best:.3f} TB/s (read and write counted)")
"""


def commands_for(rig: Rig, names: Sequence[str], models: ModelPaths) -> dict[str, ServerCommand]:
    """Return the scenarios' commands; ports are set by whoever starts them."""
    return {n: pipeline.command_for(load_scenario(n), rig, models, 30000) for n in names}


def one_run(
    rig: Rig,
    backend: Backend,
    observer: TurnObserver,
    names: Sequence[str],
    levels: Sequence[int],
    sweeps: int,
    models: ModelPaths,
    out: Path,
    ends_at: float,
) -> Path:
    """Measure one launch of the scenarios; return the run folder."""
    wanted = pipeline.Wanted(
        scenarios=names, levels=levels, launches=1, max_launches=1, sweeps=sweeps
    )
    return pipeline.run(
        rig,
        wanted,
        backend,
        observer,
        command=sys.argv,
        models=models,
        out=out,
        backend_reason="servers of a pool, one measured at a time",
        ends_at=ends_at,
    )


def variants(args: argparse.Namespace, rig: Rig, models: ModelPaths, ends_at: float) -> int:
    """Measure the core scenarios and the variants side by side."""
    names = args.scenarios.split(",") if args.scenarios else list(VARIANTS)
    more = args.more.split(",") if args.more else []
    pool = Pool(args.out / "logs-variants", rig.server.startup_timeout_s)
    small = shared_gpu(rig, args.kv_tokens // 2)
    commands = commands_for(rig, names, models) | commands_for(small, more, models)
    levels = args.levels or rig.load.levels
    published = rig.model_copy(
        update={"load": rig.load.model_copy(update={"protocol": "published"})}
    )
    try:
        backend = start_scenarios(pool, commands, args.port)
        failed = pool.wait(lambda text: print(text, flush=True))

        def measure(label: str, rig: Rig, wanted: list[str], at: list[int], sweeps: int) -> None:
            wanted = [n for n in wanted if n not in failed]
            if wanted and at and time.monotonic() < ends_at:
                observer = TurnObserver(label, wanted, None, 0)
                out = args.out / f"runs-{label}"
                one_run(rig, backend, observer, wanted, at, sweeps, models, out, ends_at)

        measure("variants", rig, names, levels, args.sweeps)
        measure("more", rig, more, [c for c in levels if c <= args.more_up_to], args.sweeps)
        measure("published", published, names, args.published, 1)
        side_by_side(args, rig, [n for n in names if n not in failed], backend, models, ends_at)
        if args.then and args.then_for not in failed and time.monotonic() < ends_at:
            command = args.then.replace("URL", pool.get(args.then_for).base_url)
            print(f"$ {command}", flush=True)
            subprocess.run(["bash", "-c", command], timeout=120, check=False)
        if args.linger:
            # Whoever started this looks what is left on the GPU when it is killed.
            (args.out / "measured").touch()
            time.sleep(60)
    finally:
        pool.stop()
    return len(failed)


def side_by_side(
    args: argparse.Namespace,
    rig: Rig,
    names: Sequence[str],
    backend: Backend,
    models: ModelPaths,
    ends_at: float,
) -> None:
    """Measure some scenarios pass by pass in turns, so that a drift of the host hits all of them alike."""
    names = [n for n in args.aim.split(",") if n in names] if args.aim else []
    if not names or time.monotonic() > ends_at:
        return
    ends_at = min(ends_at, time.monotonic() + args.aim_seconds)

    def part(turns: Turns, run: int) -> None:
        name = names[run]
        # All at the same position: whichever pass comes next is the same one for each.
        observer = TurnObserver(f"turns {name}", [name], turns, run)
        out = args.out / f"runs-turns-{name}"
        levels = args.aim_levels
        one_run(rig, backend, observer, [name], levels, args.aim_sweeps, models, out, ends_at)

    in_turns([part] * len(names))


def containers(args: argparse.Namespace, rig: Rig, models: ModelPaths, ends_at: float) -> int:
    """Measure the core scenarios as processes and in containers, in turns."""
    names = args.scenarios.split(",") if args.scenarios else list(pipeline.CORE)
    overrides: list[Path] = []
    if args.userland:
        root = Path(pipeline.__file__).resolve().parent.parent
        scratch = Path(tempfile.mkdtemp(prefix="kit-userland-")) / "userland.yaml"
        standins = cpu_environment().get("PYTHONPATH", "") if rig.server.cpu_plugin else ""
        folders = [root, Path(models.target).parent.resolve()]
        overrides = [userland(names, folders, scratch, args.network, standins)]
    commands = commands_for(rig, names, models)
    pool = Pool(args.out / "logs-containers", rig.server.startup_timeout_s)
    levels = args.levels or [c for c in rig.load.levels if c <= 100]
    inner = [c for c in levels if c in args.container_levels] or levels
    folders_of: dict[str, Path] = {}
    try:
        process = start_scenarios(pool, commands, args.port)
        for index, (name, command) in enumerate(commands.items()):
            port = args.port + 500 + PORT_STEP * index
            compose = ComposeBackend(
                port=port,
                image=args.userland or None,
                gpu="devices" if args.userland and not rig.server.cpu_plugin else None,
                overrides=overrides,
            )
            pool.start(f"box-{name}", compose, with_port(command, port))
        failed = pool.wait(lambda text: print(text, flush=True))
        good = [n for n in names if n not in failed]
        boxed = [n for n in good if f"box-{n}" not in failed]
        sides: list[tuple[str, Backend, list[str], list[int]]] = [
            ("process", process, good, levels),
            ("compose", PoolBackend(pool, "box-", "compose"), boxed, inner),
        ]

        def part(turns: Turns, run: int) -> None:
            label, backend, wanted, at = sides[run]
            if wanted:
                observer = TurnObserver(label, names, turns, run)
                out = args.out / f"runs-{label}"
                folders_of[label] = one_run(
                    rig, backend, observer, wanted, at, args.sweeps, models, out, ends_at
                )

        in_turns([part] * len(sides))
    finally:
        pool.stop()
    if len(folders_of) == 2:
        ratios(folders_of, boxed, inner, args.out)
    return len(failed)


def ratios(
    folders: dict[str, Path], names: Sequence[str], levels: Sequence[int], out: Path
) -> None:
    """Print the containers' throughput over the processes', pass by pass of the same sweep."""
    data = {label: read_run(folder) for label, folder in folders.items()}
    rows: list[dict[str, Any]] = []
    pairs: tuple[list[float], list[float]] = ([], [])
    for name in names:
        for level in levels:
            sides = [
                [r.tok_s for r in data[label].measured(name, level)]
                for label in ("compose", "process")
            ]
            kept = min(map(len, sides))
            sides = [side[:kept] for side in sides]
            if kept < 2:
                continue
            got = ratio_ci([sides[0]], [sides[1]], paired=True)
            print(f"{name:<10} C={level:<4} {got.value:.4f} [{got.low:.4f}, {got.high:.4f}]")
            rows.append(
                {"scenario": name, "level": level, "compose": sides[0], "process": sides[1]}
            )
            # Each level's own scale is taken out, so that all passes can be pooled.
            scale = sum(sides[1]) / kept
            for pooled, side in zip(pairs, sides, strict=True):
                pooled.extend(value / scale for value in side)
    if pairs[0]:
        got = ratio_ci([pairs[0]], [pairs[1]], paired=True)
        print(
            f"all passes: compose over process {got.value:.4f} [{got.low:.4f}, {got.high:.4f}], "
            f"{len(pairs[0])} pairs, aim within {AIM:.0%}"
        )
        rows.append({"all": got.value, "low": got.low, "high": got.high, "pairs": len(pairs[0])})
    (out / "ratios.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Run one part; the exit code is the number of servers that failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("part", choices=["pair", "variants", "containers"])
    parser.add_argument("--rig", default="h200")
    parser.add_argument("--scenarios", default="")
    parser.add_argument("--levels", type=lambda t: [int(c) for c in t.split(",")], default=None)
    parser.add_argument(
        "--container-levels",
        type=lambda t: [int(c) for c in t.split(",")],
        default=[1, 10, 30, 100],
    )
    parser.add_argument("--sweeps", type=int, default=2)
    parser.add_argument("--kv-tokens", type=int, default=72000, help="KV cache of each server")
    parser.add_argument("--seconds", type=float, default=1e6, help="no pass starts after this")
    parser.add_argument("--port", type=int, default=31000)
    parser.add_argument("--userland", default="", metavar="IMAGE")
    parser.add_argument("--network", choices=["bridge", "host"], default="bridge")
    parser.add_argument(
        "--then", default="", help="shell command with URL, while servers still run"
    )
    parser.add_argument("--then-for", default="spec-v2")
    parser.add_argument("--more", default="", help="further scenarios, with half the KV cache")
    parser.add_argument("--more-up-to", type=int, default=100, help="their highest level")
    parser.add_argument(
        "--published",
        type=lambda t: [int(c) for c in t.split(",")],
        default=[],
        help="levels to measure once more by the published protocol",
    )
    parser.add_argument("--aim", default="", help="scenarios to measure pass by pass in turns")
    parser.add_argument(
        "--aim-levels", type=lambda t: [int(c) for c in t.split(",")], default=[1, 2, 5, 10, 30]
    )
    parser.add_argument("--aim-sweeps", type=int, default=4)
    parser.add_argument("--aim-seconds", type=float, default=150)
    parser.add_argument("--layers", type=int, help="of the pair instead of the rig's")
    parser.add_argument("--linger", action="store_true", help="leave the servers for a minute")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    ends_at = time.monotonic() + args.seconds
    args.out.mkdir(parents=True, exist_ok=True)
    rig = load_rig(args.rig)
    # Time on a lent GPU is short: two warm passes nearly always agree, a fourth has not been needed.
    few = rig.repetition.model_copy(update={"max_warm_passes": 3})
    rig = rig.model_copy(update={"repetition": few})
    if args.layers:
        pair = rig.pair.model_copy(update={"layers": args.layers})
        rig = rig.model_copy(update={"name": f"{rig.name}-{args.layers}", "pair": pair})
    models = pipeline.ensure_pair(rig, lambda text: print(text, flush=True))
    if args.part == "pair":
        subprocess.run([sys.executable, "-c", BANDWIDTH], timeout=60, check=False)
        return 0
    if not rig.server.cpu_plugin:
        rig = shared_gpu(rig, args.kv_tokens)
    part = {"variants": variants, "containers": containers}[args.part]
    return part(args, rig, models, ends_at)


if __name__ == "__main__":
    sys.exit(main())
