"""Run folders and golden files of earlier kits stay readable."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from kit import golden as golden_module
from kit.cli import cli
from kit.errors import UserError
from kit.golden import read_golden
from kit.runfolder import read_run
from tests.conftest import ROOT

OLD = ROOT / "tests" / "fixtures" / "run-of-first-kit"


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    """A real run of the CPU rig as the first kit wrote it (most requests left out), in a folder that may be written."""
    return Path(shutil.copytree(OLD, tmp_path / OLD.name))


def test_it_has_none_of_the_later_fields() -> None:
    text = (OLD / "samples.jsonl").read_text() + (OLD / "run.json").read_text()
    for later in ('"server":{', "ttft_s", "pair_digest", '"stream"', "doctor", '"start"'):
        assert later not in text, later


def test_kit_check_judges_it(old_run: Path) -> None:
    done = CliRunner().invoke(cli, ["check", str(old_run)])
    assert done.exit_code == 0, done.output
    assert "REPRODUCED  3 of 3 claims hold" in done.output
    verdict = json.loads((old_run / "verdict.json").read_text())
    assert (verdict["status"], len(verdict["levels"])) == ("REPRODUCED", 9)
    run = read_run(old_run)
    assert {r.server for r in run.levels} == {None}
    assert run.telemetry == []


def test_it_can_be_compared_and_recorded(old_run: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["compare", str(old_run), str(old_run)])
    assert done.exit_code in (0, 4), done.output
    assert "1.000 [" in done.output
    out = tmp_path / "golden.yaml"
    done = CliRunner().invoke(
        cli, ["golden", "record", str(old_run), "--note", "old", "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    golden = read_golden(out)
    assert golden.provenance.text == "old"
    factors = golden.factors_at("spec-v2", 8)
    assert factors.step_time_s is not None
    assert factors.decoding is None, "the first kit did not read the server's log"


def test_a_newer_run_is_refused_in_one_sentence(old_run: Path) -> None:
    manifest = json.loads((old_run / "run.json").read_text())
    (old_run / "run.json").write_text(json.dumps({**manifest, "schema": 99}))
    done = CliRunner().invoke(cli, ["check", str(old_run)])
    assert isinstance(done.exception, UserError)
    assert "schema 99; this kit reads up to" in done.exception.sentence


def test_older_golden_files_go_through_every_migration_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it will be at schema 3: `tok_s` became `throughput`, and `rig_name` `rig`."""
    data = yaml.safe_load((ROOT / "golden" / "rtx-pro-6000-x8.yaml").read_text())
    old = {k: v for k, v in data.items() if k not in ("rig", "throughput")}
    old |= {"schema": 1, "rig_name": data["rig"], "tok_s": data["throughput"]}
    path = tmp_path / "old.yaml"
    path.write_text(yaml.safe_dump(old))

    def to_2(d: dict[str, object]) -> dict[str, object]:
        return {
            **{k: v for k, v in d.items() if k != "tok_s"},
            "schema": 2,
            "throughput": d["tok_s"],
        }

    def to_3(d: dict[str, object]) -> dict[str, object]:
        assert "throughput" in d, "the step before has run"
        return {
            **{k: v for k, v in d.items() if k != "rig_name"},
            "schema": 3,
            "rig": d["rig_name"],
        }

    monkeypatch.setattr(golden_module, "SCHEMA", 3)
    monkeypatch.setattr(golden_module, "MIGRATIONS", {1: to_2, 2: to_3})
    migrated = golden_module.migrate(yaml.safe_load(path.read_text()), path)
    assert migrated == {**data, "schema": 3}
    with pytest.raises(UserError, match="schema 4; this kit reads 3"):
        golden_module.migrate({"schema": 4}, path)
    with pytest.raises(UserError, match="schema 0"):
        golden_module.migrate({"schema": 0}, path)
