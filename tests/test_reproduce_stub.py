"""The whole pipeline over a stub server: faults and their verdicts. The real engine is in test_reproduce_engine.py."""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from click.testing import CliRunner, Result

from kit import reproduce as pipeline
from kit.backends.process import ProcessBackend
from kit.cli import cli
from kit.errors import KitError
from kit.runfolder import latest_run, read_run
from kit.scenarios import load_rig

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CPU rig's planted pair, made once."""
    folder = tmp_path_factory.mktemp("pairs")
    os.environ["KIT_PAIRS"] = str(folder)
    try:
        pipeline.ensure_pair(load_rig("cpu"))
    finally:
        del os.environ["KIT_PAIRS"]
    return folder


@pytest.fixture
def stub(
    project: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int
) -> Any:
    """Return a function that runs ``kit`` with the stub in the server's place."""
    fake = tmp_path / "python"
    fake.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/tests/stub_server.py "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("KIT_PAIRS", str(pairs))
    monkeypatch.setattr(
        "kit.backends.auto.ProcessBackend", functools.partial(ProcessBackend, python=str(fake))
    )
    golden = project / "golden" / "cpu.yaml"
    golden.unlink(missing_ok=True)

    def run(*args: str, mode: str = "", command: str = "reproduce") -> Result:
        monkeypatch.setenv("STUB_ARGS", mode)
        size = ["--rig", "cpu", "--port", str(free_port), "--levels", "1,4"]
        size += ["--launches", "1", "--sweeps", "1"] if command == "reproduce" else []
        return CliRunner().invoke(cli, [command, *size, *args])

    run.project = project  # type: ignore[attr-defined]
    run.runs = tmp_path / "runs"  # type: ignore[attr-defined]
    run.fake = fake  # type: ignore[attr-defined]
    run.port = free_port  # type: ignore[attr-defined]
    return run


def verdict_of(stub: Any) -> dict[str, Any]:
    folder = latest_run(stub.runs)
    assert folder is not None
    loaded: dict[str, Any] = json.loads((folder / "verdict.json").read_text())
    return loaded


def finding_ids(stub: Any) -> set[str]:
    return {f["id"] for f in verdict_of(stub)["findings"] if f["severity"] == "invalid"}


def test_all_scenarios_run_and_are_proven_exact(stub: Any) -> None:
    result = stub()
    assert result.exit_code == 5, result.output  # no golden file for this rig yet
    assert finding_ids(stub) == set()
    folder = latest_run(stub.runs)
    assert folder is not None
    run = read_run(folder)
    assert run.manifest.status == "complete"
    assert [launch.proof.worker for launch in run.launches] == ["plain", "v1", "v2"]
    assert {r.scenario for r in run.levels} == {"baseline", "spec-v1", "spec-v2"}
    assert all(r.checked and r.mismatch_at is None for r in run.requests)
    measured = [r for r in run.requests if r.phase == "measure"]
    assert {r.completion_tokens for r in measured} == {96}
    for text in ("spec-v2", "worker v2 proven", "left", "NOT COMPARABLE", "run folder"):
        assert text in result.output


def test_golden_file_decides(stub: Any) -> None:
    claim = {
        "id": "c",
        "text": "never so fast",
        "numerator": "spec-v2",
        "denominator": "baseline",
        "levels": [4],
        "at_least": 1000.0,
    }
    data = {
        "schema": 1,
        "rig": "cpu",
        "source": "measured",
        "provenance": {"text": "made up"},
        "protocol": "steady",
        "decides": "claims",
        "claims": [claim],
    }
    path = stub.project / "golden" / "cpu.yaml"
    path.write_text(yaml.safe_dump(data))
    result = stub("--launches", "2")
    assert result.exit_code == 1, result.output
    assert "SLOWER" in result.output
    assert "REFUTED" in result.output
    data["claims"] = [{**claim, "at_least": 0.0001}]
    path.write_text(yaml.safe_dump(data))
    again = CliRunner().invoke(cli, ["check", str(latest_run(stub.runs))])
    assert again.exit_code == 0, again.output
    assert "REPRODUCED" in again.output


@pytest.mark.parametrize(
    ("mode", "finding"),
    [
        ("--mode short", "token-count"),
        ("--mode wrong-token", "not-exact"),
        ("--mode cached", "cached-tokens"),
        ("--mode error-500", "server-died"),
        ("--wrong-worker", "wrong-worker"),
        ("--mode exit-at-start", "server-died"),
        ("--mode die-after --after 30", "server-died"),
        ("--mode die-after --after 3", "server-died"),
        ("--max-running-requests 2", "wrong-setting"),
    ],
)
def test_faults_make_the_run_invalid(stub: Any, mode: str, finding: str) -> None:
    result = stub("-s", "spec-v2", mode=mode)
    assert result.exit_code == 3, result.output
    assert finding in finding_ids(stub)
    assert (
        "Traceback (most recent call last)" not in result.output or "stub failure" in result.output
    )
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_a_dead_server_shows_its_log_and_the_others_go_on(stub: Any) -> None:
    result = stub("-s", "baseline", "-s", "spec-v2", mode="--mode die-after --after 30")
    assert result.exit_code == 3
    assert "stub died on purpose" in result.output
    folder = latest_run(stub.runs)
    assert folder is not None
    run = read_run(folder)
    assert [f.scenario for f in run.failures] == ["baseline", "spec-v2"]
    assert run.manifest.status == "failed"
    # What ended before the death is kept.
    assert [r for r in run.requests if r.error is None]


def test_hanging_server_times_out(stub: Any) -> None:
    path = stub.project / "scenarios" / "rigs" / "cpu.yaml"
    data = yaml.safe_load(path.read_text())
    data["load"]["request_timeout_s"] = 1
    path.write_text(yaml.safe_dump(data))
    result = stub("-s", "baseline", mode="--mode hang-after --after 3")
    assert result.exit_code == 3
    run = read_run(latest_run(stub.runs))  # type: ignore[arg-type]
    assert {r.error for r in run.requests if r.error} == {"timeout"}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["-s", "nope"], "no scenario named 'nope'"),
        (["--rig", "nope"], "no rig named 'nope'"),
        (["--levels", "1,99"], "between 1 and"),
        (["--golden", "/none.yaml"], "no golden file"),
        (["--backend", "attach"], "attach needs a server"),
        (["--url", "ftp://x", "-s", "baseline"], "not a URL"),
        (["--levels", "a"], "not a list of levels"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(stub: Any, args: list[str], said: str) -> None:
    result = stub(*args)
    error = result.exception
    if isinstance(error, KitError):
        assert error.exit_code == 2
        assert said in error.sentence
    else:
        assert result.exit_code == 2
        assert said in result.output
    assert latest_run(stub.runs) is None


def test_port_in_use_is_said_before_a_server_starts(stub: Any) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", stub.port))
        holder.listen()
        result = stub("-s", "baseline")
    assert isinstance(result.exception, KitError)
    assert f"Port {stub.port}" in result.exception.sentence
    assert result.exception.exit_code == 2


def test_bench_measures_a_server_that_runs_already(stub: Any) -> None:
    env = {**os.environ, "STUB_ARGS": ""}
    target = Path(os.environ["KIT_PAIRS"]) / "cpu" / "target"
    server = subprocess.Popen(
        [str(stub.fake), "--port", str(stub.port), "--model-path", str(target)], env=env
    )
    try:
        for _ in range(100):
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", stub.port)) == 0:
                    break
            time.sleep(0.1)
        url = f"http://127.0.0.1:{stub.port}"
        result = stub("baseline", "--url", url, command="bench")
        assert result.exit_code == 5, result.output
        assert server.poll() is None  # it is not ours to stop
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("moment", ["starting the server", "warm-up", "sweep 1"])
def test_ctrl_c_keeps_samples_and_leaves_nothing(stub: Any, moment: str) -> None:
    code = (
        "import functools, sys, kit.backends.auto as r\n"
        "from kit.backends.process import ProcessBackend\n"
        f"r.ProcessBackend = functools.partial(ProcessBackend, python={str(stub.fake)!r})\n"
        "from kit.cli import main\n"
        f"sys.argv = ['kit', 'reproduce', '--rig', 'cpu', '--port', '{stub.port}',"
        "'-s', 'baseline', '--levels', '1,4']\n"
        "main()\n"
    )
    env = {**os.environ, "STUB_ARGS": "--delay 0.02"}
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )
    assert child.stdout is not None
    for line in child.stdout:
        if moment in line:
            break
    descendants = psutil.Process(child.pid).children(recursive=True)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert "Interrupted" in err
    assert "Traceback" not in err
    assert not [p for p in descendants if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    folder = latest_run(stub.runs)
    assert folder is not None
    run = read_run(folder)
    assert run.manifest.status == "interrupted"
    if moment != "starting the server":
        assert run.requests


def test_full_disk_is_one_sentence(stub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from kit.errors import UserError
    from kit.runfolder import RunFolder

    real = RunFolder.append
    count = 0

    def full(self: RunFolder, record: Any) -> None:
        nonlocal count
        count += 1
        if count > 20:
            raise UserError(
                "Cannot write samples.jsonl: No space left on device.", "Free some space."
            )
        real(self, record)

    monkeypatch.setattr(RunFolder, "append", full)
    result = stub("-s", "baseline")
    assert isinstance(result.exception, UserError)
    assert result.exception.exit_code == 2
    assert "is kept in" in result.output
    run = read_run(latest_run(stub.runs))  # type: ignore[arg-type]
    assert run.manifest.status == "failed"
    assert len(run.requests) >= 10
