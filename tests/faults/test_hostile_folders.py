"""A run folder from elsewhere cannot make the kit write, remove or change anything outside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kit import clean as cleaning
from kit.backends import leftovers
from kit.cli import cli
from kit.errors import KitError, UserError
from kit.golden import golden_for, golden_path
from kit.runfolder import LOGS, MANIFEST, SAMPLES, RunFolder, write_atomic
from tests.factory import launch_record, level_record, manifest, request_record

BAD_NAMES = ["../../outside", "/etc/outside", "a\x00b", ""]
COMMANDS: list[list[str]] = [
    ["check", "RUN"],
    ["report", "RUN", "--compare", "RUN"],
    ["golden", "record", "RUN", "--note", "x"],
    ["reproduce", "--resume", "RUN"],
]


def a_run(parent: Path, status: str = "complete") -> Path:
    """A run of two launches that golden numbers could be made of."""
    with RunFolder.create(parent, "cpu") as folder:
        folder.write_manifest(manifest().model_copy(update={"status": status}))
        for launch in range(2):
            folder.append(launch_record(scenario="baseline", launch=launch))
            for sweep in range(2):
                for index in range(3):
                    folder.append(
                        request_record(
                            scenario="baseline", launch=launch, sweep=sweep, level=1, index=index
                        )
                    )
                folder.append(
                    level_record(scenario="baseline", launch=launch, sweep=sweep, level=1)
                )
    return folder.path


def state(folder: Path, without: Path) -> dict[str, Any]:
    """Every file in a folder but those of the run, and what the kit makes for the rig cpu when it is asked to."""
    asked_for = (without, golden_path("cpu"), folder / "pairs" / "cpu")
    return {
        str(p.relative_to(folder)): (
            str(p.readlink()) if p.is_symlink() else (p.stat().st_size, p.stat().st_mtime_ns)
        )
        for p in folder.rglob("*")
        if p.is_file() and not any(p.is_relative_to(own) for own in asked_for)
    }


@pytest.fixture
def home(tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KIT_RUNS", str(tmp_path / "runs"))
    # Where a report lies is what counts here; drawing it takes a second.
    monkeypatch.setattr("kit.report.html.page.render", lambda *_: "<p>drawn</p>")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_all(run: Path) -> None:
    for command in COMMANDS:
        argv = [str(run) if word == "RUN" else word for word in command]
        result = CliRunner().invoke(cli, argv)
        error = result.exception
        assert error is None or isinstance(error, SystemExit | KitError), (argv, repr(error))


def set_run_id(data: dict[str, Any], bad: str) -> None:
    data["run_id"] = bad


def set_rig(data: dict[str, Any], bad: str) -> None:
    data["rig"]["name"] = bad


def set_scenarios(data: dict[str, Any], bad: str) -> None:
    data["scenarios"] = {bad: {}}
    data["plan"]["scenarios"] = [bad]


def set_backend(data: dict[str, Any], bad: str) -> None:
    data["backend"] = bad


def no_rig(data: dict[str, Any], bad: str) -> None:
    data["rig"] = {}


@pytest.mark.parametrize("bad", BAD_NAMES, ids=repr)
@pytest.mark.parametrize("change", [set_run_id, set_rig, set_scenarios, set_backend, no_rig])
@pytest.mark.parametrize("status", ["complete", "running"])
def test_names_in_a_manifest_lead_nowhere(
    home: Path, change: Callable[[dict[str, Any], str], None], bad: str, status: str
) -> None:
    run = a_run(home / "runs", status)
    data = json.loads((run / MANIFEST).read_text())
    change(data, bad)
    (run / MANIFEST).write_text(json.dumps(data))
    before = state(home, run)
    run_all(run)
    assert state(home, run) == before


@pytest.mark.parametrize("bad", BAD_NAMES, ids=repr)
def test_names_in_records_lead_nowhere(home: Path, bad: str) -> None:
    run = a_run(home / "runs", "running")
    text = (run / SAMPLES).read_text()
    (run / SAMPLES).write_text(text.replace('"baseline"', json.dumps(bad)))
    before = state(home, run)
    run_all(run)
    assert state(home, run) == before


@pytest.mark.parametrize(
    "bad", [*BAD_NAMES, "..", "A B", "x" * 300, "../scenarios/rigs/cpu"], ids=repr
)
def test_a_golden_file_lies_in_its_folder(home: Path, bad: str) -> None:
    with pytest.raises(UserError, match="no name of a rig"):
        golden_path(bad)
    with pytest.raises(UserError):
        golden_for(bad)


LINKS = [SAMPLES, LOGS, "verdict.json", "report.html", "report.md", "telemetry.jsonl", MANIFEST]


@pytest.mark.parametrize("name", LINKS)
def test_links_in_a_run_folder_lead_nowhere(home: Path, name: str) -> None:
    """What the link points to is neither written nor cut off, whatever is asked of the run."""
    run = a_run(home / "runs", "running")
    outside = home / "outside"
    inside = run / name
    if name == LOGS:
        inside.rmdir()
        outside.mkdir()
        (outside / "kept").write_text("kept")
    else:
        # Half a line at the end: what a resumed run would mend.
        outside.write_bytes((inside.read_bytes() if inside.exists() else b"") + b'{"half')
        inside.unlink(missing_ok=True)
    inside.symlink_to(outside)
    before = state(home, run)
    run_all(run)
    assert state(home, run) == before


def test_a_run_folder_with_a_link_is_not_gone_on_with(home: Path) -> None:
    run = a_run(home / "runs", "running")
    outside = home / "outside"
    outside.write_text("x\n")
    (run / LOGS / "baseline-0-resume1.log").symlink_to(outside)
    with pytest.raises(UserError, match="holds a link"):
        RunFolder.reopen(run, 1, [], 0.0)
    assert outside.read_text() == "x\n"


def test_a_planted_temporary_name_leads_nowhere(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (tmp_path / f".run.json.{os.getpid()}.tmp").symlink_to(victim)
    write_atomic(tmp_path / "run.json", b"new")
    assert victim.read_text() == "kept"
    assert (tmp_path / "run.json").read_text() == "new"
    assert not (tmp_path / "run.json").is_symlink()


def gone_owner() -> str:
    code = "from kit.backends.leftovers import owner; print(owner())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("mark", ["/../../victim", "..", "a/b", ".", "a" * 65])
def test_a_mark_that_is_a_path_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    """Any process may carry any environment, and `kit clean` reads it."""
    temp = tmp_path / "a" / "temp"
    (temp / "kit-server-").mkdir(parents=True)
    victim = tmp_path / "a" / "victim"
    victim.mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(temp))
    env = {**os.environ, leftovers.MARK: mark, leftovers.OWNER: gone_owner()}
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=env) as child:
        found = [o.name for o in cleaning.orphaned_processes() if str(child.pid) in o.name]
        child.kill()
    assert found == []
    with pytest.raises(ValueError, match="is no mark"):
        leftovers.remove_temporary_folder(mark)
    assert victim.is_dir()
