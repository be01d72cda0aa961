"""Kill a run at a random instant, look at what is left of it, take it up again, look at the whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from kit import verdict as judging
from kit.attempts import finished
from kit.records import RunData
from kit.runfolder import is_being_written, read_run
from tests.faults.bench import Bench, Kit, free_port, until

NO_GOLDEN = 5  # the exit code of a run in order that has no golden file


@dataclass
class Tally:
    """What the kills met."""

    kills: int = 0
    before_the_folder: int = 0
    after_the_end: int = 0
    told: int = 0
    found: int = 0
    half_lines: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    passes_kept: int = 0
    passes_again: int = 0
    requests_set_aside: int = 0

    def text(self) -> str:
        return (
            f"{self.kills} kills: {self.before_the_folder} before the run folder had its run.json, "
            f"{self.after_the_end} after the end; {self.told} records had been appended when the kills came and "
            f"{self.found} were found (never fewer); {self.half_lines} half lines; "
            f"{self.passes_kept} finished passes kept, {self.passes_again} measured on resumption, "
            f"{self.requests_set_aside} requests set aside"
        )


@contextmanager
def stub_server(bench: Bench, *argv: str) -> Iterator[str]:
    """A stub that outlives the kits; yields its URL."""
    port = free_port()
    target = str(bench.pair / "target")
    with subprocess.Popen(
        [str(bench.stub), "--port", str(port), "--model-path", target, *argv]
    ) as child:
        from kit.backends.leftovers import listeners

        assert until(lambda: listeners(port))
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            child.kill()


def records_in(run: RunData) -> int:
    """Return how many launches, requests, levels and failures a run folder holds."""
    return len(run.launches) + len(run.requests) + len(run.levels) + len(run.failures)


def check_whole(run: RunData, before: RunData, scenario: str) -> None:
    """Assert that everything planned was measured, once, and that what was finished before stayed as it was."""
    plan = run.manifest.plan
    assert run.manifest.status == "complete"
    assert run.truncated_lines == 0
    assert run.failures == []
    wanted = {(s, c) for s in range(plan.sweeps) for c in plan.levels}
    levels = Counter((r.sweep, r.level) for r in run.levels if r.phase == "measure")
    assert levels == Counter(wanted)
    requests = Counter((r.sweep, r.level, r.index) for r in run.requests if r.phase == "measure")
    assert requests == Counter((s, c, i) for s, c in wanted for i in range(plan.requests[c]))
    done = finished(before.levels)
    old = [
        r
        for r in before.levels
        if (scenario, r.launch, r.sweep, r.level) in done and r.phase == "measure"
    ]
    assert [r for r in old if r not in run.levels] == []


def kill_at(bench: Bench, kit: Kit, seconds: float, victim: str) -> None:
    """Kill the kit, or the server that it started, ``seconds`` after the kit began."""
    pid = kit.pid
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not kit.done():
        time.sleep(0.0005)
    if victim == "server":
        for server in bench.servers():
            os.kill(server, signal.SIGKILL)
        return
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def one_kill(
    bench: Bench, tally: Tally, seconds: float, *, victim: str = "kit", url: str | None = None
) -> None:
    """Run, kill after ``seconds``, check, resume, check. Records what was met in ``tally``."""
    bench.clear()
    told = bench.folder / "told"
    told.unlink(missing_ok=True)
    env = {"TEST_APPENDS": str(told), "TEST_NO_REPORT": "1"}
    where = ["--backend", "attach", "--url", url] if url else ["--backend", "process"]
    ours = ["--port", str(bench.port)]
    kit = bench.start("reproduce", "--rig", "tiny", "-s", "baseline", *ours, *where, **env)
    kill_at(bench, kit, seconds, victim)
    code = kit.wait()
    tally.kills += 1
    assert "Traceback" not in kit.out + kit.err, kit.out + kit.err
    if not bench.folders():
        # Anything but the kill would be a kit that refused to run: no kill was tried then.
        assert (victim, code) == ("kit", -signal.SIGKILL), kit.out + kit.err
        tally.before_the_folder += 1
        return
    path = bench.latest()
    # A child that the kit was just making holds the lock until it is another program.
    assert until(lambda: not is_being_written(path), 5)
    before = read_run(path)
    count = told.stat().st_size // 2 if told.exists() else 0
    tally.told += count
    tally.found += records_in(before)
    assert records_in(before) >= count, (records_in(before), count)
    assert before.truncated_lines <= 1
    assert not before.being_written
    tally.half_lines += before.truncated_lines
    tally.statuses[before.manifest.status] += 1
    judging.judge(before, None)
    if before.manifest.status == "complete":
        tally.after_the_end += 1
        return
    if victim == "server":
        assert code == 3
    again = bench.run("reproduce", "--resume", str(path), *(["--url", url] if url else []), **env)
    assert again.wait() == NO_GOLDEN, again.out + again.err
    after = read_run(path)
    check_whole(after, before, "baseline")
    assert after.resumes == 1
    kept = len(finished(before.levels))
    tally.passes_kept += kept
    tally.passes_again += len(finished(after.levels)) - kept
    tally.requests_set_aside += len(after.set_aside)


def run_seconds(bench: Bench, url: str | None = None) -> float:
    """Return how long an undisturbed run takes."""
    bench.clear()
    where = ["--backend", "attach", "--url", url] if url else ["--backend", "process"]
    begun = time.monotonic()
    kit = bench.run(
        "reproduce",
        "--rig",
        "tiny",
        "-s",
        "baseline",
        "--port",
        str(bench.port),
        *where,
        TEST_NO_REPORT="1",
    )
    assert kit.wait() == NO_GOLDEN, kit.out + kit.err
    return time.monotonic() - begun


def many_kills(
    bench: Bench, count: int, seed: int, *, victim: str = "kit", attach: bool = False
) -> Tally:
    """Kill ``count`` runs at instants that are uniform over an undisturbed run."""
    rng = random.Random(seed)
    tally = Tally()

    def go(url: str | None) -> None:
        run_seconds(bench, url)
        seconds = run_seconds(bench, url)
        for _ in range(count):
            one_kill(bench, tally, rng.uniform(0, seconds), victim=victim, url=url)

    if attach:
        with stub_server(bench, "--delay", "0.002") as url:
            go(url)
    else:
        go(None)
    return tally
