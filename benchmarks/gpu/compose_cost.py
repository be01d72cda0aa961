"""What a container costs: the same scenarios through the compose and the process backend, alternating on one host.

    python3 benchmarks/gpu/compose_cost.py --rig h200 --levels 1,10,30,100 --launches 3 --sweeps 2 --out OUT

Each launch measures every scenario with one backend and then with the other, the order swapped from launch to launch,
and the ratio is taken of neighbours. On a host without a registry and NVIDIA's toolkit give ``--userland IMAGE``: IMAGE
is an empty image, and the host's own userland is mounted into it, so that both sides run the same files.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from kit import reproduce as pipeline
from kit.backends.base import Backend
from kit.backends.compose import ComposeBackend
from kit.backends.process import ProcessBackend
from kit.compose.launch import gpu_nodes
from kit.measure import Observer
from kit.records import FailureRecord, LaunchRecord, LevelRecord
from kit.runfolder import read_run
from kit.scenarios import load_rig
from kit.schedule import Step
from kit.sglang_plugin import cpu_environment
from kit.stats import ratio_ci

SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt", "/etc", "/root")
KEPT = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_HOME")
AIM = 0.02


class Say(Observer):
    """Prints a line for each event."""

    def opened(self, folder: Path) -> None:
        print(f"  {folder}", flush=True)

    def starting(self, step: Step, left_s: float) -> None: ...
    def waiting(self, scenario: str, waited_s: float) -> None: ...

    def launched(self, record: LaunchRecord) -> None:
        print(
            f"  {record.scenario} ready in {record.ready_s:.0f} s {record.proof.problems}",
            flush=True,
        )

    def passed(self, record: LevelRecord) -> None: ...

    def failed(self, record: FailureRecord) -> None:
        print(
            f"  FAILED {record.scenario}: {record.sentence} {record.remedy}\n{record.log_tail}",
            flush=True,
        )


def userland(
    scenarios: list[str], folders: list[Path], path: Path, network: str, standins: str
) -> Path:
    """Write the compose file that turns an empty image into this host's userland. Returns its path."""
    shared = ["/tmp"]
    system = [m for m in SYSTEM if Path(m).exists()]
    rest = [str(f) for f in folders if not str(f).startswith(("/tmp/", *(f"{m}/" for m in system)))]
    volumes = [f"{m}:{m}:ro" for m in [*system, *dict.fromkeys(rest)]] + [
        f"{m}:{m}" for m in shared
    ]
    env = {name: os.environ[name] for name in KEPT if name in os.environ}
    # The backend leaves this host's path out; here it holds inside too.
    search = [p for p in (standins, env.get("PYTHONPATH", "")) if p]
    if search:
        env["PYTHONPATH"] = os.pathsep.join(search)
    service = "\n".join(
        [
            f"    entrypoint: {json.dumps([sys.executable])}",
            # The engine's packages for such hosts carry no docker-init, and their limits cannot be raised.
            "    init: false",
            "    ulimits: !reset null",
            "    secrets: !reset []",
            f"    devices: !override {json.dumps(gpu_nodes())}",
            f"    volumes: !override {json.dumps(volumes)}",
            f"    environment: {json.dumps({**env, 'HOME': '/tmp/kit-home'})}",
            *(["    network_mode: host", "    ports: !reset null"] if network == "host" else []),
        ]
    )
    text = "services:\n" + "".join(f"  {name}:\n{service}\n" for name in scenarios)
    path.write_text(text.replace("$", "$$"), encoding="utf-8")
    Path("/tmp/kit-home").mkdir(mode=0o777, exist_ok=True)
    return path


def main() -> int:
    """Measure, print the ratios, write ratios.json; exit code 1 if a level's interval lies outside the aim."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rig", default="h200")
    parser.add_argument("--levels", default="1,10,30,100")
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--sweeps", type=int, default=2)
    parser.add_argument("--scenarios", default=",".join(pipeline.CORE))
    parser.add_argument("--userland", default="", metavar="IMAGE")
    parser.add_argument("--network", choices=["bridge", "host"], default="bridge")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rig = load_rig(args.rig)
    names = args.scenarios.split(",")
    levels = [int(c) for c in args.levels.split(",")]
    models = pipeline.ensure_pair(rig, print)
    args.out.mkdir(parents=True, exist_ok=True)

    overrides: list[Path] = []
    if args.userland:
        root = Path(pipeline.__file__).resolve().parent.parent
        folders = [root, Path(models.target).parent.resolve()]
        scratch = Path(tempfile.mkdtemp(prefix="kit-userland-")) / "userland.yaml"
        standins = cpu_environment().get("PYTHONPATH", "") if rig.server.cpu_plugin else ""
        overrides = [userland(names, folders, scratch, args.network, standins)]
    backends: dict[str, Backend] = {
        "process": ProcessBackend(port=args.port),
        "compose": ComposeBackend(
            port=args.port,
            image=args.userland or None,
            gpu="devices" if args.userland else None,
            overrides=overrides,
        ),
    }
    found: dict[tuple[str, int], dict[str, list[list[float]]]] = {}
    for launch in range(args.launches):
        for name in names:
            for kind in ("process", "compose") if launch % 2 == 0 else ("compose", "process"):
                print(f"launch {launch} {name} {kind}", flush=True)
                wanted = pipeline.Wanted(
                    scenarios=[name], levels=levels, launches=1, max_launches=1, sweeps=args.sweeps
                )
                folder = pipeline.run(
                    rig,
                    wanted,
                    backends[kind],
                    Say(),
                    command=sys.argv,
                    models=models,
                    port=args.port,
                    out=args.out,
                )
                data = read_run(folder)
                if data.failures:
                    return 2
                wrong = [r for r in data.requests if r.error or r.mismatch_at is not None]
                if wrong:
                    print(f"  {len(wrong)} requests failed or were not exact", flush=True)
                    return 2
                for level in levels:
                    rows = [r.tok_s for r in data.measured(name, level)]
                    found.setdefault((name, level), {}).setdefault(kind, []).append(rows)

    print(f"\nthroughput, compose over process (aim: within {AIM:.0%})")
    report, worst = [], 0
    for (name, level), sides in found.items():
        got = ratio_ci(sides["compose"], sides["process"], paired=args.launches > 1)
        outside = got.high < 1 - AIM or got.low > 1 + AIM
        worst = max(worst, int(outside))
        print(
            f"{name:<10} C={level:<4} {got.value:.4f}  [{got.low:.4f}, {got.high:.4f}]  {got.method}"
        )
        report.append(
            {
                "scenario": name,
                "level": level,
                "ratio": got.value,
                "low": got.low,
                "high": got.high,
                **sides,
            }
        )
    (args.out / "ratios.json").write_text(json.dumps(report, indent=1) + "\n")
    return worst


if __name__ == "__main__":
    sys.exit(main())
