"""The fault matrix: what goes wrong, and what the kit must say. Run by test_matrix.py; tabled in docs/faults.md."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kit.runfolder import read_run
from tests.faults.bench import FIRST_LEVEL_END, WARM_END, Bench, Kit, until
from tests.faults.kills import NO_GOLDEN, stub_server

INVALID, USAGE = 3, 2
IN_WARM_UP, MID_LEVEL = 6, WARM_END + 2
SHORT_PATIENCE = {"load": {"request_timeout_s": 1}}
SHORT_START = {"server": {"startup_timeout_s": 2}}


@dataclass
class Seen:
    """What came of a fault."""

    exit_code: int
    verdict: str
    sentence: str


@dataclass(frozen=True)
class Case:
    """A fault: what it is, how it is made, and what must come of it.

    ``says`` is a regular expression that the sentence must match from its start.
    """

    id: str
    what: str
    exit_code: int
    verdict: str
    says: str
    make: Callable[[Bench], Kit]


def sentence(kit: Kit, verdict: dict[str, Any] | None) -> str:
    """Return what a user reads first: the first finding of an invalid run, else the error's or verdict's line."""
    if verdict:
        for severity in ("invalid", "warning"):
            for finding in verdict["findings"]:
                if finding["severity"] == severity:
                    return str(finding["seen"])
    for line in kit.err.splitlines():
        if line.startswith("kit: "):
            return line.removeprefix("kit: ")
    return str(verdict["headline"]) if verdict else kit.err.strip().splitlines()[-1]


def look(bench: Bench, kit: Kit) -> Seen:
    code = kit.wait(90)
    # A server's traceback is shown with the end of its log; one of the kit's own would be a bug.
    assert not re.search(r'File ".*/kit/', kit.err + kit.out), kit.out + kit.err
    ended = kit.err.splitlines()
    usage = any(line.startswith(("kit: ", "Error: ")) for line in ended) and code == USAGE
    verdict = None if usage else bench.verdict()
    return Seen(code, verdict["status"] if verdict else "–", sentence(kit, verdict))


def plain(text: str, bench: Bench) -> str:
    """Return a sentence without what differs from run to run: paths, ports, counts."""
    text = text.replace(str(bench.folder), "…")
    text = re.sub(r"\d{8}T\d{6}Z-tiny(-\d+)?", "RUN", text)
    text = re.sub(r"(?<=[Pp]ort )\d+|(?<=127\.0\.0\.1:)\d+", "PORT", text)
    text = re.sub(r"…/runs\b", "RUNS", text)
    return re.sub(
        r"\d+(\.\d+)?(?=× | requests| of \d| outputs| tokens| lines| C=| bytes)", "N", text
    )


def stub(mode: str, *more: str, rig: dict[str, Any] | None = None) -> Callable[[Bench], Kit]:
    """Measure with a stub that breaks in one way."""

    def make(bench: Bench) -> Kit:
        bench.rig(**(rig or {}))
        return bench.reproduce(*more, stub=mode)

    return make


def at(mode: str, after: int) -> str:
    return f"--mode {mode} --after {after}"


def killed(bench: Bench) -> Kit:
    gate = bench.gate(FIRST_LEVEL_END + 1)
    kit = bench.reproduce(stub=gate.stub)
    gate.reached(kit)
    for pid in bench.servers():
        os.kill(pid, signal.SIGKILL)
    return kit


def full_disk(bench: Bench) -> Kit:
    """A real file system of 64 KiB where one can be mounted, else writes that fail as on a full disk."""
    small = bench.folder / "small"
    small.mkdir(exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], capture_output=True
    )
    if mounted.returncode:
        return bench.reproduce("--out", str(small), "--sweeps", "40", TEST_DISK="40")
    try:
        kit = bench.reproduce("--out", str(small), "--sweeps", "40")
        kit.wait()
        (run,) = small.glob("*-tiny")
        kept = read_run(run)
        assert kept.truncated_lines == 0, "half a line was left"
        assert len(kept.requests) > WARM_END, "nothing was kept"
        for run in small.glob("*-tiny"):
            shutil.copytree(run, bench.runs / run.name)
    finally:
        subprocess.run(["umount", str(small)], check=True)
    return kit


def clock_steps_back(bench: Bench) -> Kit:
    return bench.reproduce(TEST_CLOCK="-3600")


def no_dns(bench: Bench) -> Kit:
    where = ["--backend", "attach", "--url", "http://nowhere.invalid:30000"]
    return bench.start("reproduce", "--rig", "tiny", "-s", "baseline", *where)


def dns_gone(bench: Bench) -> Kit:
    """Somebody else's server is known by a name, which is no longer known from the middle of a level on.

    A connection that is open goes on; each level makes its own, so the next level cannot begin.
    """
    hosts = bench.folder / "hosts"
    hosts.write_text("127.0.0.1 engine.example\n")
    gate = bench.gate(MID_LEVEL)
    with stub_server(bench, *gate.stub.split()) as url:
        where = ["--backend", "attach", "--url", url.replace("127.0.0.1", "engine.example")]
        argv = ["reproduce", "--rig", "tiny", "-s", "baseline", *where]
        kit = bench.start(*argv, TEST_HOSTS=str(hosts))
        gate.reached(kit)
        hosts.write_text("")
        gate.open()
        kit.wait()
    return kit


def one_port(bench: Bench) -> Kit:
    gate = bench.gate(IN_WARM_UP)
    first = bench.reproduce(stub=gate.stub)
    gate.reached(first)
    second = bench.reproduce()
    second.wait()
    gate.open()
    assert first.wait() == NO_GOLDEN, "the first kit was disturbed"
    return second


def foreign_port(bench: Bench) -> Kit:
    target = str(bench.pair / "target")
    argv = [str(bench.stub), "--port", str(bench.port), "--model-path", target]
    from kit.backends.leftovers import listeners

    with subprocess.Popen(argv) as other:
        try:
            assert until(lambda: listeners(bench.port))
            kit = bench.reproduce()
            kit.wait()
        finally:
            other.kill()
    return kit


def one_folder(bench: Bench) -> Kit:
    gate = bench.gate(IN_WARM_UP)
    first = bench.reproduce(stub=gate.stub)
    gate.reached(first)
    second = bench.start("reproduce", "--resume", str(bench.latest()))
    second.wait()
    gate.open()
    assert first.wait() == NO_GOLDEN, "the first kit was disturbed"
    return second


def _golden(at_least: float) -> str:
    claim = {
        "id": "c",
        "text": "speculation answers",
        "numerator": "spec-v2",
        "denominator": "baseline",
        "levels": [1],
        "at_least": at_least,
    }
    head = {"schema": 1, "rig": "tiny", "source": "measured", "provenance": {"text": "made up"}}
    body = {"protocol": "steady", "decides": "claims", "claims": [claim]}
    return yaml.safe_dump({**head, **body})


def golden_edited(bench: Bench) -> Kit:
    """At the start the run would be REPRODUCED, by the edited file SLOWER."""
    path = bench.home / "golden" / "tiny.yaml"
    path.write_text(_golden(0.0001))
    gate = bench.gate(IN_WARM_UP)
    kit = bench.reproduce("-s", "spec-v2", "--launches", "2", stub=gate.stub)
    gate.reached(kit)
    path.write_text(_golden(1000.0))
    gate.open()
    return kit


def golden_broken(bench: Bench) -> Kit:
    path = bench.home / "golden" / "tiny.yaml"
    path.write_text(_golden(0.0001))
    gate = bench.gate(IN_WARM_UP)
    kit = bench.reproduce("-s", "spec-v2", "--launches", "2", stub=gate.stub)
    gate.reached(kit)
    path.write_text("{")
    gate.open()
    return kit


def _interrupt(bench: Bench, **env: str) -> None:
    """Run, and interrupt it in the second level."""
    gate = bench.gate(FIRST_LEVEL_END + 1)
    kit = bench.reproduce(stub=gate.stub, **env)
    gate.reached(kit)
    kit.send(signal.SIGINT)
    kit.wait()


def _interrupted(bench: Bench) -> Path:
    _interrupt(bench)
    return bench.latest()


def model_truncated(bench: Bench) -> Kit:
    """The planted pair is checked before each run and made anew."""
    weights = max((bench.pair / "target").glob("*.safetensors"), key=lambda p: p.stat().st_size)
    os.truncate(weights, 1000)
    return bench.reproduce()


def model_truncated_meanwhile(bench: Bench) -> Kit:
    """Weights of the user's own, of which a part is lost between the run and its resumption."""
    models = bench.folder / "models"
    shutil.rmtree(models, ignore_errors=True)
    shutil.copytree(bench.pair, models)
    path = bench.home / "scenarios" / "rigs" / "tiny.yaml"
    rig = yaml.safe_load(path.read_text())
    rig["pair"] = {"kind": "paths", "target_env": "TARGET", "draft_env": "DRAFT"}
    path.write_text(yaml.safe_dump(rig))
    env = {"TARGET": str(models / "target"), "DRAFT": str(models / "draft")}
    _interrupt(bench, **env)
    weights = max((models / "target").glob("*.safetensors"), key=lambda p: p.stat().st_size)
    os.truncate(weights, weights.stat().st_size - 1)
    return bench.start("reproduce", "--resume", str(bench.latest()), **env)


def model_replaced(bench: Bench) -> Kit:
    """A run of real weights whose files changed between the run and its resumption."""
    path = _interrupted(bench)
    manifest = json.loads((path / "run.json").read_text())
    manifest["pair_digest"] = "0" * 16
    (path / "run.json").write_text(json.dumps(manifest))
    return bench.start("reproduce", "--resume", str(path))


def resumed_with(key: str, value: Any) -> Callable[[Bench], Kit]:
    def make(bench: Bench) -> Kit:
        path = _interrupted(bench)
        manifest = json.loads((path / "run.json").read_text())
        manifest[key] = value
        (path / "run.json").write_text(json.dumps(manifest))
        return bench.start("reproduce", "--resume", str(path))

    return make


def resumed_with_scenario(bench: Bench) -> Kit:
    path = _interrupted(bench)
    scenario = bench.home / "scenarios" / "baseline.yaml"
    before = scenario.read_text()
    data = yaml.safe_load(before)
    data.setdefault("args", {})["schedule-conservativeness"] = 0.5
    scenario.write_text(yaml.safe_dump(data))
    try:
        kit = bench.start("reproduce", "--resume", str(path))
        kit.wait()
    finally:
        scenario.write_text(before)
    return kit


def attached_dies(bench: Bench) -> Kit:
    """Somebody else's server goes away in the middle."""
    with stub_server(bench, "--mode", "die-after", "--after", str(MID_LEVEL)) as url:
        where = ["--backend", "attach", "--url", url]
        kit = bench.start("reproduce", "--rig", "tiny", "-s", "baseline", *where)
        kit.wait()
    return kit


START = "baseline ended early, launch 0, at start: "
WARM = "baseline ended early, launch 0, in the warm-up of C=1: "
MID = "baseline ended early, launch 0, in sweep 0 at C=1: "
NEXT = "baseline ended early, launch 0, in sweep 0 at C=2: "
V, OK = "INVALID", "NOT COMPARABLE"
NO_FAULT = "there is no golden file for the rig tiny; nothing was found that voids the numbers"


def answers(id_: str, what: str, mode: str, says: str, *more: str, **rig: Any) -> Case:
    """The server's answers are wrong from the third request of a measured level on."""
    make = stub(f"{mode} --after {MID_LEVEL}", *more, rig=rig)
    return Case(id_, what, INVALID, V, says, make)


CASES = [
    Case("none", "nothing (for comparison)", NO_GOLDEN, OK, NO_FAULT, stub("")),
    Case(
        "die-start",
        "server dies at start",
        INVALID,
        V,
        START + "The server ended with exit code 1",
        stub("--mode exit-at-start"),
    ),
    Case(
        "die-warm",
        "server dies in warm-up",
        INVALID,
        V,
        WARM + "The server ended with exit code 9",
        stub(at("die-after", IN_WARM_UP - 4)),
    ),
    Case(
        "die-mid",
        "server dies in a level",
        INVALID,
        V,
        MID + "The server ended with exit code 9",
        stub(at("die-after", MID_LEVEL)),
    ),
    Case(
        "die-within",
        "server dies within an answer",
        INVALID,
        V,
        MID + "The server ended with exit code 9",
        stub(at("die-within", MID_LEVEL)),
    ),
    Case(
        "die-between",
        "server dies between levels",
        INVALID,
        V,
        NEXT + "The server ended with exit code 9",
        stub(at("die-answered", FIRST_LEVEL_END)),
    ),
    Case(
        "die-attached",
        "somebody else's server goes away in a level",
        INVALID,
        V,
        NEXT + "Every request .*ConnectionRefused",
        attached_dies,
    ),
    Case(
        "killed",
        "server is killed from outside in a level",
        INVALID,
        V,
        r"baseline ended early, .* was ended by SIGKILL",
        killed,
    ),
    Case(
        "oom-host",
        "kernel kills the server in a level, memory is short",
        INVALID,
        V,
        MID + "The server was ended by SIGKILL",
        stub(at("killed", MID_LEVEL)),
    ),
    Case(
        "oom-gpu",
        "GPU runs out of memory at start",
        INVALID,
        V,
        START + ".*memory",
        stub(
            "--mode exit-at-start --log-line torch.OutOfMemoryError:_CUDA_out_of_memory._Tried_to_allocate_2.00_GiB"
        ),
    ),
    Case(
        "hang-start",
        "server hangs at start",
        INVALID,
        V,
        START + "The server did not decode a token within 2 s",
        stub("--mode never-listens", rig=SHORT_START),
    ),
    Case(
        "deaf-start",
        "server is healthy and does not decode",
        INVALID,
        V,
        START + "The server did not decode a token within 2 s",
        stub("--mode healthy-but-no-decode", rig=SHORT_START),
    ),
    Case(
        "hang-warm",
        "server hangs in warm-up",
        INVALID,
        V,
        WARM + "Every request of baseline at C=1 failed",
        stub(at("hang-after", 4), rig=SHORT_PATIENCE),
    ),
    Case(
        "hang-mid",
        "server hangs in a level",
        INVALID,
        V,
        NEXT + "Every request",
        stub(at("hang-after", MID_LEVEL), rig=SHORT_PATIENCE),
    ),
    Case(
        "hang-between",
        "server hangs between levels",
        INVALID,
        V,
        NEXT + "Every request of baseline at C=2 failed",
        stub(at("hang-after", FIRST_LEVEL_END), rig=SHORT_PATIENCE),
    ),
    answers("500", "answers 500", "--mode status --status 500", NEXT + "Every request .*HTTP 500"),
    answers("503", "answers 503", "--mode status --status 503", NEXT + "Every request .*HTTP 503"),
    answers("429", "answers 429", "--mode status --status 429", NEXT + "Every request .*HTTP 429"),
    answers(
        "redirect", "answers a redirect", "--mode redirect", NEXT + ".*redirects are not followed"
    ),
    answers("bad-json", "answers no JSON", "--mode bad-json", NEXT + ".*not JSON"),
    answers("wrong-shape", "answers other JSON", "--mode wrong-shape", NEXT + ".*no meta_info"),
    answers(
        "too-few",
        "answers a token too few",
        "--mode short",
        r"baseline at C=\d: N requests returned N tokens",
    ),
    answers(
        "too-many", "answers a token too many", "--mode long", NEXT + ".*output tokens came back"
    ),
    answers(
        "wrong-token",
        "answers a wrong token",
        "--mode wrong-token",
        r"baseline at C=\d: N of N outputs differ",
    ),
    answers(
        "cached",
        "answers from a prefix cache",
        "--mode cached",
        r"baseline at C=\d: N requests found prompt tokens",
    ),
    answers(
        "after-end",
        "stream: tokens after the end",
        "--mode after-end",
        NEXT + ".*after .DONE.",
        "--stream",
    ),
    Case(
        "duplicate",
        "stream: every chunk twice (each holds the whole output so far: nothing is counted twice)",
        NO_GOLDEN,
        OK,
        NO_FAULT,
        stub(at("duplicate", MID_LEVEL), "--stream"),
    ),
    answers(
        "reorder",
        "stream: chunks in the wrong order",
        "--mode reorder",
        NEXT + ".*count of tokens fell",
        "--stream",
    ),
    answers(
        "half-stream",
        "stream: closed before its end",
        "--mode half-stream",
        NEXT + ".*closed within the answer",
        "--stream",
    ),
    answers("reset", "connection reset", "--mode reset", NEXT + "Every request .*reset"),
    answers(
        "slow-loris",
        "a byte of the answer at a time",
        "--mode slow-loris",
        NEXT + "Every request",
        **SHORT_PATIENCE,
    ),
    answers(
        "huge-body", "an answer without end", "--mode huge-body", NEXT + ".*larger than N bytes"
    ),
    Case(
        "huge-info",
        "/server_info without end",
        INVALID,
        V,
        START + "The server does not answer /server_info.*larger than",
        stub("--mode huge-info"),
    ),
    Case("disk", "disk full", USAGE, "–", r"Cannot write .*: No space left on device", full_disk),
    Case(
        "clock", "clock stepped back an hour in the run", NO_GOLDEN, OK, NO_FAULT, clock_steps_back
    ),
    Case(
        "dns",
        "the host's name is not known",
        INVALID,
        V,
        START + "The server at .* does not answer",
        no_dns,
    ),
    Case(
        "dns-gone",
        "the host's name is no longer known in a level",
        INVALID,
        V,
        NEXT + "Every request .*Name or service not known",
        dns_gone,
    ),
    Case(
        "port-kit",
        "two kits on one port",
        USAGE,
        "–",
        "Another kit runs a server on port PORT",
        one_port,
    ),
    Case(
        "port-other",
        "another program on the port",
        USAGE,
        "–",
        "Port PORT on .* is in use",
        foreign_port,
    ),
    Case(
        "folder",
        "two kits on one run folder",
        USAGE,
        "–",
        "Another kit is writing the run folder",
        one_folder,
    ),
    Case(
        "golden-edited",
        "golden file edited during the run",
        0,
        "REPRODUCED",
        "The golden file .*changed during the run",
        golden_edited,
    ),
    Case(
        "golden-broken",
        "golden file broken during the run",
        0,
        "REPRODUCED",
        "The golden file .*changed during the run",
        golden_broken,
    ),
    Case(
        "model-truncated",
        "model file truncated before the run (planted pair: it is made anew)",
        NO_GOLDEN,
        OK,
        NO_FAULT,
        model_truncated,
    ),
    Case(
        "model-truncated-meanwhile",
        "model file truncated between a run and --resume (weights of the user's own)",
        USAGE,
        "–",
        "The run RUN cannot go on: the files of the model pair changed",
        model_truncated_meanwhile,
    ),
    Case(
        "resume-model",
        "--resume, model files changed",
        USAGE,
        "–",
        "The run RUN cannot go on: the files of the model pair changed",
        model_replaced,
    ),
    Case(
        "resume-fingerprint",
        "--resume, other machine",
        USAGE,
        "–",
        "The run RUN cannot go on: the fingerprint changed",
        resumed_with("fingerprint_hash", "0"),
    ),
    Case(
        "resume-image",
        "--resume, other image",
        USAGE,
        "–",
        "The run RUN cannot go on: the image changed",
        resumed_with("image_digest", "sha256:0"),
    ),
    Case(
        "resume-patches",
        "--resume, other patches",
        USAGE,
        "–",
        "The run RUN cannot go on: the patches changed",
        resumed_with("patches", [{"id": "0009"}]),
    ),
    Case(
        "resume-scenario",
        "--resume, scenario changed",
        USAGE,
        "–",
        "The run RUN cannot go on: the scenario baseline changed",
        resumed_with_scenario,
    ),
]


def row(case: Case, seen: Seen, bench: Bench) -> str:
    text = plain(seen.sentence, bench).replace("|", "\\|").replace("<", "&lt;")
    return f"| {case.what} | {seen.verdict} | {seen.exit_code} | {text[:260]} |"
