"""Kill runs of the real engine on the CPU, and take them up again."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from kit import verdict as judging
from kit.attempts import finished
from kit.backends import leftovers
from kit.runfolder import MANIFEST, read_run
from tests.faults.bench import ROOT, until
from tests.faults.kills import check_whole

# What a whole run sends: a warm pass of two levels, then three sweeps of them, four requests a pass.
REQUESTS = 32
NAME = "cpu"
SCENARIO = "spec-v2"


@dataclass
class EngineBench:
    """A scratch project with a short version of the CPU rig."""

    folder: Path
    port: int
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.home = self.folder / "project"
        self.runs = self.folder / "runs"
        self.temp = self.folder / "temp"
        self.temp.mkdir(parents=True)
        shutil.copytree(ROOT / "scenarios", self.home / "scenarios")
        (self.home / "golden").mkdir()
        path = self.home / "scenarios" / "rigs" / "cpu.yaml"
        rig = yaml.safe_load(path.read_text())
        rig["load"] |= {"levels": [1, 2], "output_tokens": 24, "min_requests": 4}
        rig["load"] |= {"requests_per_slot": 2}
        rig["repetition"] = {"launches": 1, "sweeps": 3, "max_launches": 1, "max_warm_passes": 1}
        path.write_text(yaml.safe_dump(rig))

    def start(self, *argv: str) -> subprocess.Popen[str]:
        env = {
            **os.environ,
            "KIT_HOME": str(self.home),
            "KIT_RUNS": str(self.runs),
            "KIT_PAIRS": str(self.folder / "pairs"),
            "TMPDIR": str(self.temp),
            "OMP_NUM_THREADS": "1",
            "KIT_NO_DOCTOR": "1",  # it looks before a run and writes nothing
        }
        code = "from kit.cli import main; main()"
        return subprocess.Popen(
            [sys.executable, "-c", code, "reproduce", *argv],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self) -> subprocess.Popen[str]:
        where = ["--backend", "process", "--port", str(self.port)]
        return self.start("--rig", NAME, "-s", SCENARIO, *where)

    def mine(self) -> list[int]:
        """Return every process of this project: kits, servers, reapers."""
        home = str(self.home)
        found = [p for p in leftovers._pids() if leftovers.environment(p).get("KIT_HOME") == home]
        return [p for p in found if leftovers.is_running(p)]

    def servers(self) -> list[int]:
        return [p for p in self.mine() if leftovers.MARK in leftovers.environment(p)]

    def left(self) -> list[str]:
        until(lambda: not self.mine(), 30)
        files = [str(p) for p in self.temp.iterdir() if not p.name.startswith("torchinductor")]
        return [f"process {p}" for p in self.mine()] + files

    def requests(self) -> int:
        """Return how many requests have been written down."""
        files = list(self.runs.glob("*/samples.jsonl"))
        return files[0].read_bytes().count(b'"kind":"request"') if files else 0

    def kill_once(
        self, rng: random.Random, seconds: tuple[float, float], victim: str, after: int = 0
    ) -> str:
        """Kill, check, resume, check. Returns what was met, in words.

        The kill comes at a random instant within ``seconds`` of the start, or after so many requests.
        """
        shutil.rmtree(self.runs, ignore_errors=True)
        at = rng.uniform(*seconds)
        kit = self.run()
        deadline = time.monotonic() + at
        while kit.poll() is None and (
            self.requests() < after if after else time.monotonic() < deadline
        ):
            time.sleep(0.01)
        targets = self.servers() if victim == "server" else [kit.pid]
        leftovers.signal_all(targets, signal.SIGKILL)
        out, _ = kit.communicate(timeout=120)
        assert self.left() == [], self.left()
        (path,) = [p for p in self.runs.iterdir() if (p / MANIFEST).is_file()]
        before = read_run(path)
        assert before.truncated_lines == 0
        judging.judge(before, None)
        kept = len(finished(before.levels))
        assert len(before.requests) >= after
        when = f"{after} requests" if after else f"{at:.1f} s"
        met = f"{victim} killed after {when}: {before.manifest.status}, {kept} passes, "
        met += f"{len(before.requests)} requests kept"
        if before.manifest.status == "complete":
            return met
        again = self.start("--resume", str(path))
        said, _ = again.communicate(timeout=600)
        # 5: in order, and no golden file for the short rig; 3 where a busy machine disturbed the client.
        assert again.returncode in (3, 5), out + said
        after = read_run(path)
        check_whole(after, before, SCENARIO)
        assert all(r.mismatch_at is None for r in after.requests)
        assert self.left() == []
        return f"{met}; resumed: {len(finished(after.levels)) - kept} passes more, complete"
