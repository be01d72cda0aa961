"""Launches of several runs as one run."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from kit.cli import cli
from kit.errors import UserError
from kit.golden import read_golden
from kit.merge import merge
from kit.recording import record
from kit.records import RunData
from kit.runfolder import RunFolder
from tests.test_verdict import run_of


def named(run: RunData, run_id: str, **plan: Any) -> RunData:
    config = run.manifest.plan.model_copy(update=plan)
    update = {"run_id": run_id, "plan": config}
    return run.model_copy(update={"manifest": run.manifest.model_copy(update=update)})


def test_one_run_stays_as_it_is() -> None:
    run = run_of()
    assert merge([run]) is run


def test_launches_follow_one_another_and_only_what_is_common_is_kept() -> None:
    a = named(run_of(launches=1, levels=(1, 4, 8), seed=1), "A")
    b = named(run_of(launches=2, levels=(1, 8), seed=2), "B")
    both = merge([a, b])
    assert both.manifest.run_id == "A+B"
    assert both.manifest.plan.levels == [1, 8]
    assert both.manifest.plan.launches == 3
    assert {x.launch for x in both.levels} == {0, 1, 2}
    for name in a.scenarios():
        for level in (1, 8):
            one, two, all_ = (r.grouped(name, level) for r in (a, b, both))
            want = [[x.tok_s for x in g] for g in one + two]
            assert [[x.tok_s for x in g] for g in all_] == want
    assert not both.measured("baseline", 4)
    # Two runs of one launch each cannot be recorded alone; together their noise is known.
    assert record(both, "both").throughput["spec-v2"][8].launches == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fingerprint_hash": "x"}, "machine or software"),
        ({"pair": {"kind": "planted", "hidden": 1}}, "models"),
        ({"rig": {"name": "other"}}, "rig"),
    ],
)
def test_other_machines_and_models_are_refused(change: dict[str, Any], said: str) -> None:
    a, b = run_of(seed=1), run_of(seed=2)
    b = b.model_copy(update={"manifest": b.manifest.model_copy(update=change)})
    with pytest.raises(UserError, match=said):
        merge([a, b])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"output_tokens": 9}, "output tokens"),
        ({"protocol": "published"}, "protocol"),
        ({"requests": {1: 7, 4: 30}}, "requests a level"),
    ],
)
def test_other_plans_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        merge([run_of(), named(run_of(), "B", **change)])


def test_nothing_in_common_is_said() -> None:
    with pytest.raises(UserError, match="no scenario and level in common"):
        merge([run_of(levels=(1,)), run_of(levels=(4,))])


def test_an_unfinished_run_makes_the_whole_unfinished() -> None:
    a, b = run_of(seed=1), run_of(seed=2)
    cut = b.manifest.model_copy(update={"status": "interrupted"})
    both = merge([a, b.model_copy(update={"manifest": cut})])
    with pytest.raises(UserError, match="is interrupted"):
        record(both, "both")


def test_golden_record_takes_several_runs(project: Any) -> None:
    folders = []
    for seed in (1, 2):
        run = run_of(launches=1, seed=seed)
        with RunFolder.create(project / "runs", f"cpu{seed}") as folder:
            update = {"run_id": folder.path.name}
            folder.write_manifest(run.manifest.model_copy(update=update))
            for item in [*run.launches, *run.levels, *run.requests]:
                folder.append(item)
            folders.append(str(folder.path))
    out = str(project / "new.yaml")
    one = CliRunner().invoke(cli, ["golden", "record", folders[0], "--note", "n", "--out", out])
    assert isinstance(one.exception, UserError)
    both = CliRunner().invoke(cli, ["golden", "record", *folders, "--note", "n", "--out", out])
    assert both.exit_code == 0, both.output
    golden = read_golden(project / "new.yaml")
    assert golden.throughput["baseline"][1].launches == 2
    assert "+" in (golden.provenance.run_id or "")
