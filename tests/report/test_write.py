"""A report that cannot be drawn costs a run nothing: not its verdict, not its exit code."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from kit.cli import cli
from kit.golden import Golden
from kit.report import write
from kit.report.finish import finish
from kit.report.html import page
from kit.runfolder import read_run
from kit.verdict import judge


def kit(*args: str) -> Any:
    return CliRunner().invoke(cli, list(args))


def boom(error: BaseException) -> Any:
    def raising(*args: Any, **kwargs: Any) -> str:
        raise error

    return raising


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("no room for axes\nsecond line"),
        ModuleNotFoundError("No module named 'matplotlib'"),
        MemoryError(),
        KeyboardInterrupt(),
        OSError(28, "No space left on device"),
    ],
)
def test_a_failed_drawing_keeps_verdict_and_exit_code(
    error: BaseException,
    folder: Path,
    golden: Golden,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(page, "render", boom(error))
    out = io.StringIO()
    code = finish(folder, golden, Console(file=out), as_json=False)
    assert code == 0
    assert json.loads((folder / "verdict.json").read_text())["status"] == "REPRODUCED"
    assert "REPRODUCED" in out.getvalue()
    assert "report.html" not in out.getvalue()
    assert not (folder / "report.html").exists()
    said = capsys.readouterr().err
    assert "The report was not drawn" in said
    assert "second line" not in said
    assert "Traceback" not in said


def test_a_failed_short_report_costs_as_little(
    folder: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "render_markdown", boom(ValueError("x")))
    run = read_run(folder)
    written = write.write_reports(folder, run, judge(run, golden), golden)
    assert written.problem == "ValueError: x"


def test_the_verdict_is_on_disk_before_anything_is_drawn(
    folder: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[bool] = []

    def look(*args: Any) -> str:
        there.append((folder / "verdict.json").is_file())
        return "<p>"

    monkeypatch.setattr(page, "render", look)
    finish(folder, golden, Console(file=io.StringIO()), as_json=False)
    assert there == [True]


def test_check_writes_both_reports_and_says_where(project: Path, folder: Path) -> None:
    result = kit("check", str(folder))
    assert result.exit_code == 0, result.output
    assert f"report     {folder / 'report.html'}" in result.output
    assert "REPRODUCED" in (folder / "report.html").read_text()
    assert (folder / "report.md").read_text().startswith("## ✅ REPRODUCED")


def test_json_stays_json(project: Path, folder: Path) -> None:
    result = CliRunner().invoke(cli, ["check", str(folder), "--json"])
    assert json.loads(result.stdout)["status"] == "REPRODUCED"
    assert (folder / "report.html").is_file()


def test_report_says_where_and_opens_it(
    project: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: bool(opened.append(url)) or True)
    result = kit("report", str(folder), "--open")
    assert result.exit_code == 0, result.output
    assert result.output == f"wrote {folder / 'report.html'}\n"
    assert opened == [(folder / "report.html").as_uri()]


def test_report_of_the_latest_run_and_without_a_browser(
    project: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KIT_RUNS", str(folder.parent))
    monkeypatch.setattr("webbrowser.open", lambda url: False)
    result = kit("report", "--open")
    assert result.exit_code == 0
    assert "no web browser was found" in result.output


def test_markdown_goes_to_standard_output_alone(project: Path, folder: Path) -> None:
    result = kit("report", str(folder), "--markdown")
    assert result.stdout == (folder / "report.md").read_text(encoding="utf-8")
    assert "wrote" in result.stderr


def test_a_report_that_cannot_be_made_is_one_sentence(
    project: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "render", boom(RuntimeError("no")))
    result = kit("report", str(folder))
    assert str(result.exception).startswith("The report could not be made: RuntimeError: no.")


def test_a_comparison_lies_in_the_second_run(project: Path, folder: Path) -> None:
    result = kit("report", "--compare", str(folder), str(folder))
    assert result.exit_code == 0, result.output
    text = (folder / f"compare-{folder.name}.html").read_text()
    assert "B over A" in text
    assert "Nothing that the run folders record" in text
    assert "INVALID" not in text


def test_compare_takes_nothing_else(folder: Path) -> None:
    result = kit("report", str(folder), "--compare", str(folder), str(folder))
    assert result.exit_code == 2


def test_a_folder_that_is_no_run_is_one_sentence(tmp_path: Path) -> None:
    for args in (["report", str(tmp_path)], ["report", "--compare", str(tmp_path), str(tmp_path)]):
        assert "is not a run folder" in str(kit(*args).exception)
