from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from kit import clean as cleaning
from kit.backends import leftovers
from kit.cli import cli
from kit.errors import UserError
from kit.runfolder import SAMPLES, RunFolder
from tests.factory import manifest

SLEEP = [sys.executable, "-c", "import time; time.sleep(300)"]
OLD = time.time() - 3600


def gone_owner() -> str:
    """The name of a kit that has ended."""
    code = "from kit.backends.leftovers import owner; print(owner())"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise UserError("There is no Docker Engine here.")

    monkeypatch.setattr("kit.backends.engine.connect", refuse)


@pytest.fixture
def home(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "runs").mkdir()
    (tmp_path / "temp").mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "temp"))
    return tmp_path


def server(owner: str, mark: str = "m" * 32, run: str = "R") -> subprocess.Popen[bytes]:
    env = {**os.environ, "KIT_SERVER_ID": mark, "KIT_OWNER": owner, "KIT_RUN_ID": run}
    return subprocess.Popen(SLEEP, env=env)


def end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()


def mine(orphans: list[cleaning.Orphan], child: subprocess.Popen[bytes]) -> list[str]:
    return [o.name for o in orphans if f"pid {child.pid})" in o.name]


def test_owner_tells_the_living_from_the_gone() -> None:
    assert leftovers.owner_state(leftovers.owner()) == "alive"
    assert leftovers.owner_state(gone_owner()) == "gone"


@pytest.mark.parametrize("at", [0, 2])
def test_an_owner_on_another_machine_or_in_another_container_is_unknown(at: int) -> None:
    parts = gone_owner().split(".")
    parts[at] = "123"
    assert leftovers.owner_state(".".join(parts)) == "unknown"


def test_an_owner_of_an_earlier_boot_is_gone() -> None:
    parts = leftovers.owner().split(".")
    parts[1] = "0"
    assert leftovers.owner_state(".".join(parts)) == "gone"


def test_a_pid_that_was_given_to_another_process_is_gone() -> None:
    *rest, _ = leftovers.owner().split(".")
    assert leftovers.owner_state(".".join([*rest, "1"])) == "gone"


@pytest.mark.parametrize("text", ["", "x", "a.b.c.d.e", "....", "1.2.3.-4.5"])
def test_an_owner_that_makes_no_sense_is_unknown(text: str) -> None:
    assert leftovers.owner_state(text) == "unknown"


def test_an_orphaned_server_is_found_by_its_run_and_removed(home: Path) -> None:
    child = server(gone_owner(), run="20261201T000000Z-cpu")
    try:
        listed = CliRunner().invoke(cli, ["clean", "--dry-run"])
        assert f"pid {child.pid})" in listed.output
        assert "of 20261201T000000Z-cpu" in listed.output
        assert child.poll() is None
        unasked = CliRunner().invoke(cli, ["clean"])
        assert "--yes" in unasked.output
        assert child.poll() is None
        done = CliRunner().invoke(cli, ["clean", "--yes"])
        assert done.exit_code == 0, done.output
        assert child.wait(10) != 0
        assert f"pid {child.pid})" not in CliRunner().invoke(cli, ["clean", "--dry-run"]).output
    finally:
        end(child)


@pytest.mark.parametrize("owner", [leftovers.owner(), "", "m.b.n.1.1"])
def test_a_server_of_a_living_or_unknown_kit_is_never_listed(home: Path, owner: str) -> None:
    child = server(owner)
    try:
        assert mine(cleaning.orphaned_processes(), child) == []
    finally:
        end(child)


def test_a_process_without_a_mark_is_never_listed(home: Path) -> None:
    env = {**os.environ, "KIT_OWNER": gone_owner()}
    child = subprocess.Popen(SLEEP, env=env)
    try:
        assert mine(cleaning.orphaned_processes(), child) == []
    finally:
        end(child)


def test_temporary_folders_of_the_gone_go_and_those_of_the_living_stay(home: Path) -> None:
    living = leftovers.make_temporary_folder("a" * 32)
    dead = leftovers.make_temporary_folder("b" * 32)
    (dead / leftovers.OWNER_FILE).write_text(gone_owner())
    (dead / "socket").write_text("")
    strange = home / "temp" / "kit-server-cccccccccccc"
    strange.mkdir()
    (home / "temp" / "kit-server-link").symlink_to(dead)
    assert [o.name for o in cleaning.orphaned_folders()] == [str(dead)]
    CliRunner().invoke(cli, ["clean", "--yes"])
    assert (dead.exists(), living.exists(), strange.exists()) == (False, True, True)


def test_half_written_files_and_empty_runs_go_and_runs_stay(home: Path) -> None:
    runs = home / "runs"
    with RunFolder.create(runs, "cpu") as folder:
        folder.write_manifest(manifest())
    whole = folder.path
    half = whole / ".run.json.999999999.tmp"
    half.write_text("{")
    fresh = whole / ".verdict.json.999999999.tmp"
    fresh.write_text("{")
    empty = runs / "20200101T000000Z-cpu"
    (empty / "logs").mkdir(parents=True)
    (empty / SAMPLES).write_text("")
    measured = runs / "20200102T000000Z-cpu"
    measured.mkdir()
    (measured / SAMPLES).write_text("{}\n")
    other = runs / "notes"
    other.mkdir()
    for path in (half, empty, measured, other):
        os.utime(path, (OLD, OLD))
    assert {Path(o.name.split(" ")[0]) for o in cleaning.orphaned_files(runs)} == {half, empty}
    assert CliRunner().invoke(cli, ["clean", "--yes"]).exit_code == 0
    assert not half.exists()
    assert not empty.exists()
    assert fresh.exists()
    assert measured.exists()
    assert other.exists()
    assert whole.exists()


def test_a_run_folder_that_is_being_made_stays(home: Path) -> None:
    with RunFolder.create(home / "runs", "cpu") as folder:
        os.utime(folder.path, (OLD, OLD))
        assert cleaning.orphaned_files(home / "runs") == []


class FakeEngine:
    """Containers and networks of three projects."""

    def __init__(self, owners: dict[str, str]) -> None:
        self.removed: list[str] = []
        self.objects = [
            SimpleNamespace(
                name=project,
                status="running",
                labels={"kit.launch": project, "kit.owner": owner, "kit.run": f"run-{project}"},
                remove=lambda project=project, **_: self.removed.append(project),
            )
            for project, owner in owners.items()
        ]
        self.containers = SimpleNamespace(list=lambda **_: self.objects)
        self.networks = SimpleNamespace(
            list=lambda filters: [
                SimpleNamespace(name=f"{p}_net", remove=lambda p=p: self.removed.append(f"{p}_net"))
                for p in [filters["label"].split("=")[1]]
            ]
        )


def test_only_containers_of_a_kit_that_is_gone_are_orphans() -> None:
    fake = FakeEngine({"gone": gone_owner(), "living": leftovers.owner(), "far": "m.b.n.1.1"})
    found = cleaning.orphaned_containers(fake)
    assert [(o.what, o.run) for o in found] == [("container", "run-gone"), ("network", "run-gone")]
    assert [o.remove() for o in found] == ["", ""]
    assert fake.removed == ["gone", "gone_net"]


def test_what_cannot_be_removed_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = cleaning.Orphan("file", "x", "", lambda: "Permission denied")
    monkeypatch.setattr(cleaning, "find", lambda _: ([bad], ""))
    result = CliRunner().invoke(cli, ["clean", "--yes"])
    assert result.exit_code == 1
    assert "Permission denied" in result.output


def test_nothing_left_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "find", lambda _: ([], "There is no engine."))
    result = CliRunner().invoke(cli, ["clean"])
    assert (result.exit_code, "Nothing is left behind." in result.output) == (0, True)
