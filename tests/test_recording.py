from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kit import golden as golden_module
from kit.cli import cli
from kit.errors import UserError
from kit.golden import read_golden, write_golden
from kit.recording import differences, record
from kit.runfolder import RunFolder
from tests.factory import launch_record
from tests.test_verdict import CLAIM, golden_of, judge, run_of, with_gpu


def test_a_recorded_run_is_reproduced_by_itself() -> None:
    run = with_gpu(run_of())
    golden = record(run, "test")
    assert judge(run, golden).status == "REPRODUCED"
    reference = golden.throughput["spec-v2"][4]
    assert (reference.launches, reference.n) == (3, 9)
    assert reference.launch_cv == pytest.approx(0.01, abs=0.01)
    assert golden.factors["spec-v2"][4].accept_length == pytest.approx(2.7)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"launches": [launch_record(["wrong worker: x"])]}, "INVALID"),
        ({"status": "interrupted"}, "is interrupted"),
    ],
)
def test_invalid_and_incomplete_runs_are_refused(change: dict[str, Any], said: str) -> None:
    run = run_of()
    if "status" in change:
        change = {"manifest": run.manifest.model_copy(update=change)}
    with pytest.raises(UserError, match=said):
        record(run.model_copy(update=change), "test")


def test_one_launch_is_refused() -> None:
    with pytest.raises(UserError, match="at least 2"):
        record(run_of(launches=1), "test")


def test_claims_are_kept_with_this_runs_ratio() -> None:
    other = CLAIM.model_copy(update={"id": "other", "numerator": "spec-v9", "golden_ratio": 9.9})
    kept = record(run_of(cv=0.001), "test", claims=[CLAIM, other]).claims
    assert [c.id for c in kept] == ["c", "other"]
    assert kept[0].golden_ratio == pytest.approx(3.0, abs=0.05)
    assert kept[1].golden_ratio is None, "a ratio that was not measured is absent"


def test_command_keeps_the_claims_of_the_file_it_replaces(tmp_path: Path) -> None:
    run = with_gpu(run_of())
    with RunFolder.create(tmp_path / "runs", "h200") as folder:
        folder.write_manifest(run.manifest)
        for row in run.levels:
            folder.append(row)
    target = tmp_path / "h200.yaml"
    write_golden(golden_of(claims=[CLAIM]), target)
    args = ["golden", "record", str(folder.path), "--note", "n", "--out", str(target)]
    result = CliRunner().invoke(cli, args)
    assert result.exit_code == 0, result.output
    (claim,) = read_golden(target).claims
    assert claim.text == CLAIM.text
    assert claim.golden_ratio == pytest.approx(3.0, abs=0.2)


def test_differences_name_what_changed() -> None:
    a = golden_of()
    b = record(with_gpu(run_of({"spec-v2": 0.5})), "test", claims=[CLAIM])
    text = "\n".join(differences(a, b))
    assert "spec-v2 C=4: " in text
    assert "claim c: only in the second" in text
    moved = b.model_copy(update={"claims": [CLAIM.model_copy(update={"at_least": 7.0})]})
    assert f"claim c: at least {CLAIM.at_least} → 7.0" in differences(b, moved)
    assert differences(a, a) == ["no difference"]


def test_an_older_schema_is_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A made-up schema 0 that called the rig ``machine``: read through its migration as if it were new."""

    def from_0(data: dict[str, Any]) -> dict[str, Any]:
        data = {**data, "schema": 1}
        data["rig"] = data.pop("machine")
        return data

    path = tmp_path / "x.yaml"
    write_golden(golden_of(), path)
    new = read_golden(path)
    path.write_text(path.read_text().replace("schema: 1", "schema: 0").replace("rig:", "machine:"))
    with pytest.raises(UserError, match="schema 0"):
        read_golden(path)
    monkeypatch.setitem(golden_module.MIGRATIONS, 0, from_0)
    assert read_golden(path) == new
