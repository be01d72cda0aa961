"""What this GPU host answers, for the tests of those who have none: doctor, NVML's answers, telemetry under load.

    python3 benchmarks/gpu/doctor_fixture.py --rig h200 --out OUT

Writes OUT/fixture.json (``nvml``: every question that was asked and its answer, ``doctor``: the results,
``fingerprint``), OUT/doctor.txt (what `kit doctor` prints) and OUT/telemetry.jsonl (20 s, idle and then under matrix
products). A part that fails is noted and the others go on. Without a GPU it writes nothing and ends with exit code 2.
Of packages it needs nvidia-ml-py, torch, sglang, click, httptools and docker, with what these bring.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from kit import fingerprint, nvml
from kit.cli.doctor import print_results, summary
from kit.doctor import probes
from kit.doctor.run import examine, this_host
from kit.scenarios import load_rig
from kit.telemetry.sampler import sampling

LOAD = """
import time, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
end = time.time() + 10
while time.time() < end:
    for _ in range(20):
        b = a @ a
    torch.cuda.synchronize()
"""
IDLE_S = 6.0


def why_no_gpu() -> str:
    """Return why no GPU can be recorded; empty where there is one."""
    try:
        with nvml.opened() as library:
            return "" if nvml.gpu_count(library) else "NVML sees no GPU"
    except nvml.NvmlError as error:
        return str(error)


def main() -> int:
    """Write the fixture; exit code 1 if a part of it failed, 2 without a GPU."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rig", default="h200")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    reason = why_no_gpu()
    if reason:
        print(f"No GPU can be recorded here ({reason}): run this on a GPU host.", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    recorders: list[nvml.RecordingNvml] = []
    real = nvml.opened

    @contextlib.contextmanager
    def recorded() -> Iterator[nvml.Nvml]:
        with real() as library:
            recorders.append(nvml.RecordingNvml(library))
            yield recorders[-1]

    nvml.opened = recorded
    found: dict[str, Any] = {"errors": []}

    def part(name: str, call: Any) -> None:
        begun = time.monotonic()
        try:
            call()
        except Exception:  # noqa: BLE001 - the other parts are worth having
            found["errors"].append(f"{name}: {traceback.format_exc()}")
        print(f"{name}: {time.monotonic() - begun:.1f} s", flush=True)

    def doctor() -> None:
        begun = time.monotonic()
        with this_host() as machine:
            report = examine(machine, probes.Job(rig=load_rig(args.rig), backend="process"))
        found["doctor"] = [r.model_dump(mode="json") for r in report.results]
        with (args.out / "doctor.txt").open("w", encoding="utf-8") as out:
            console = Console(file=out, width=200)
            print_results(report.results, console)
            console.print(summary(report, time.monotonic() - begun), markup=False, highlight=False)

    def machine_class() -> None:
        found["fingerprint"] = fingerprint.collect().model_dump(mode="json")

    def telemetry() -> None:
        with sampling(args.out, gpus=1, backend="process"):
            time.sleep(IDLE_S)
            subprocess.run([sys.executable, "-c", LOAD], timeout=60, check=True)
            time.sleep(2)

    part("doctor", doctor)
    part("fingerprint", machine_class)
    part("telemetry", telemetry)
    answers: dict[str, Any] = {}
    for recorder in recorders:
        answers.update(recorder.answers)
    found["nvml"] = answers
    text = json.dumps(found, indent=1, default=str, sort_keys=True)
    (args.out / "fixture.json").write_text(text + "\n", encoding="utf-8")
    print(f"{len(answers)} answers of NVML, {len(found['errors'])} parts failed")
    print("\n".join(found["errors"]))
    return 1 if found["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
