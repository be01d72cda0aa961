from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from kit import __version__
from kit.cli import cli
from kit.golden import read_golden
from kit.report.console import ConsoleObserver, duration
from kit.report.text import bar
from kit.runfolder import RunFolder
from kit.schedule import Step
from tests.factory import launch_record, level_record, request_record
from tests.test_verdict import golden_of, run_of, with_gpu

ROOT = Path(__file__).resolve().parent.parent


def kit(*args: str) -> Any:
    return CliRunner().invoke(cli, list(args))


def write_run(parent: Path, run: Any) -> Path:
    with RunFolder.create(parent, "h200") as folder:
        folder.write_manifest(run.manifest)
        for record in [*run.launches, *run.requests, *run.levels]:
            folder.append(record)
    return folder.path


def test_help_fits_a_page_and_groups_the_commands() -> None:
    text = kit("--help").output
    assert len(text.splitlines()) <= 50
    for heading in ("Run:", "Judge:", "Look:", "Prepare:"):
        assert heading in text


def _commands(group: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name, command in group.commands.items():
        found.append((*path, name))
        if hasattr(command, "commands"):
            found += _commands(command, (*path, name))
    return found


@pytest.mark.parametrize("path", _commands(cli), ids=" ".join)
def test_every_command_has_help(path: tuple[str, ...]) -> None:
    result = kit(*path, "--help")
    assert result.exit_code == 0
    assert len(result.output.splitlines()) > 5


def test_version_and_usage_error() -> None:
    assert __version__ in kit("--version").output
    assert kit("nonsense").exit_code == 2


def test_scenarios_as_json_can_be_read() -> None:
    data = json.loads(kit("scenarios", "--json").output)
    assert {s["name"] for s in data["scenarios"]} >= {"baseline", "spec-v1", "spec-v2"}
    assert {r["name"] for r in data["rigs"]} >= {"cpu", "h200", "rtx-pro-6000-x8"}


def test_show_prints_a_line_that_a_shell_takes() -> None:
    text = kit("show", "spec-v1", "--rig", "cpu").output
    script = text.replace("python -m sglang.launch_server", "printf '%s\\n'")
    words = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    data = json.loads(kit("show", "spec-v1", "--rig", "cpu", "--json").output)
    assert words == data["argv"][2:]


def test_show_of_a_rig_with_real_weights_names_the_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MODEL_PATH", raising=False)
    text = kit("show", "spec-v2", "--rig", "rtx-pro-6000-x8").output
    assert "--model-path $MODEL_PATH" in text
    assert "--tp-size 8" in text
    assert "--max-running-requests 256" in text


def test_errors_are_one_sentence_and_exit_2_without_a_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kit", "show", "nope"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "kit: There is no scenario named 'nope'."
    assert "Known: baseline" in done.stderr
    assert "Traceback" not in done.stderr


def test_check_judges_a_run_folder_and_writes_the_verdict(project: Path, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs", with_gpu(run_of()))
    golden = tmp_path / "golden.yaml"
    from kit.golden import write_golden

    write_golden(golden_of(), golden)
    result = kit("check", str(folder), "--golden", str(golden))
    assert result.exit_code == 0, result.output
    assert "REPRODUCED" in result.output
    assert json.loads((folder / "verdict.json").read_text())["status"] == "REPRODUCED"
    as_json = kit("check", str(folder), "--golden", str(golden), "--json")
    assert json.loads(as_json.output)["exit_code"] == 0


def test_levels_that_decide_nothing_are_only_reported() -> None:
    from kit import verdict
    from kit.report.text import level_rows

    run = with_gpu(run_of())
    decided = level_rows(verdict.judge(run, golden_of()))
    assert {row[-1] for row in decided} == {"REPRODUCED"}
    for golden in (golden_of(decides="claims"), golden_of(output_tokens=7)):
        assert {row[-1] for row in level_rows(verdict.judge(run, golden))} == {"only reported"}
    assert {row[-1] for row in level_rows(verdict.judge(run, None))} == {""}


def test_check_without_a_run_says_what_to_do(project: Path) -> None:
    result = kit("check")
    assert "There is no run" in str(result.exception)


def test_golden_is_recorded_shown_and_compared(project: Path, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs", with_gpu(run_of()))
    out = tmp_path / "new.yaml"
    result = kit("golden", "record", str(folder), "--note", "made up", "--out", str(out))
    assert result.exit_code == 0, result.output
    golden = read_golden(out)
    assert golden.source == "measured"
    reference = golden.reference("spec-v2", 4)
    assert reference is not None
    assert (reference.launches, reference.n) == (3, 9)
    assert reference.value == pytest.approx(1200, rel=0.05)
    assert reference.launch_cv is not None
    assert golden.factors_at("spec-v2", 4).accept_length == pytest.approx(2.7)
    assert kit("check", str(folder), "--golden", str(out)).exit_code == 0
    assert kit("golden", "diff", str(out), str(out)).output == "no difference\n"
    other = write_run(tmp_path / "runs", with_gpu(run_of({"spec-v2": 0.8})))
    second = tmp_path / "second.yaml"
    assert kit("golden", "record", str(other), "--note", "x", "--out", str(second)).exit_code == 0
    assert "spec-v2 C=1" in kit("golden", "diff", str(out), str(second)).output


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (lambda: run_of(launches=1), "1 launch"),
        (
            lambda: run_of().model_copy(update={"launches": [launch_record(["wrong worker: x"])]}),
            "INVALID",
        ),
        (
            lambda: (r := run_of()).model_copy(
                update={"manifest": r.manifest.model_copy(update={"status": "interrupted"})}
            ),
            "interrupted",
        ),
    ],
)
def test_no_golden_from_a_run_that_is_not_fit(
    run: Any, said: str, project: Path, tmp_path: Path
) -> None:
    folder = write_run(tmp_path / "runs", with_gpu(run()))
    out = tmp_path / "x.yaml"
    result = kit("golden", "record", str(folder), "--note", "n", "--out", str(out))
    assert said in str(result.exception)
    assert not out.exists()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (65, "1 min 05 s"), (4800, "1 h 20 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("value", "length"), [(0, 0), (0.5, 6), (1, 12), (2, 12), (-1, 0)])
def test_bars(value: float, length: int) -> None:
    assert len(bar(value, 1.0)) == length
    assert bar(1.0, 0) == ""


def test_observer_prints_plain_lines_when_piped(tmp_path: Path) -> None:
    console = Console(file=(tmp_path / "out").open("w"), width=80)
    with ConsoleObserver(console, launches=2, sweeps=3) as observer:
        observer.opened(tmp_path)
        observer.starting(Step("start", "baseline", 0), 65)
        observer.launched(launch_record())
        observer.launched(launch_record(["wrong worker: x"]))
        observer.passed(level_record())
    console.file.close()
    text = (tmp_path / "out").read_text()
    assert "\x1b" not in text
    assert "baseline · launch 1/2 · starting the server · about 1 min 05 s left" in text
    assert "worker plain proven" in text
    assert "NOT PROVEN: wrong worker: x" in text
    assert "C=1        115.2 tok/s" in text
    assert request_record().checked
