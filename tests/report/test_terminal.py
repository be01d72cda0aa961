"""The terminal during a run: changing lines on a terminal, plain lines in a pipe, nothing lost at the end."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kit.report.console import ConsoleObserver, planned_time
from kit.report.live import LevelLine, LiveView, counted
from kit.report.text import print_verdict
from kit.schedule import Clock, Step
from kit.verdict import Verdict
from tests.factory import launch_record, level_record, plan


def terminal(width: int = 100, **options: Any) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, **options)


def text_of(console: Console) -> str:
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def final_lines(console: Console) -> list[str]:
    """What stays on a screen: cursor movements and erased lines applied."""
    screen: list[str] = [""]
    row = column = 0
    for part in re.split(r"(\x1b\[[\d;?]*[A-Za-z]|\r|\n)", text_of(console)):
        if part == "\n":
            row, column = row + 1, 0
            while len(screen) <= row:
                screen.append("")
        elif part == "\r":
            column = 0
        elif part.startswith("\x1b["):
            count = int(re.sub(r"\D", "", part) or 1)
            if part.endswith("A"):
                row = max(0, row - count)
            elif part.endswith("K"):
                screen[row] = ""
        else:
            screen[row] = (
                screen[row][:column].ljust(column) + part + screen[row][column + len(part) :]
            )
            column += len(part)
    return [line.rstrip() for line in screen if line.strip()]


def drive(observer: ConsoleObserver) -> None:
    observer.phase("layer 8 of 12 made")
    for launch in range(2):
        observer.starting(Step("start", "spec-v2", launch), 65)
        observer.waiting("spec-v2", 3)
        observer.launched(launch_record(scenario="spec-v2", launch=launch))
        for level in (1, 4):
            observer.starting(Step("warm", "spec-v2", launch, level), 60)
            observer.passed(
                level_record(scenario="spec-v2", launch=launch, level=level, phase="warmup")
            )
        for sweep in range(3):
            for level in (1, 4):
                observer.starting(Step("sweep", "spec-v2", launch, level, sweep), 50)
                observer.passed(
                    level_record(
                        scenario="spec-v2",
                        launch=launch,
                        level=level,
                        sweep=sweep,
                        tok_s=100.0 * level + sweep,
                        accept_length=2.7,
                        planned_accept_length=2.71,
                    )
                )


def test_on_a_terminal_one_line_a_level_stays() -> None:
    console = terminal()
    with ConsoleObserver(console, launches=2, sweeps=3) as observer:
        drive(observer)
    lines = final_lines(console)
    kept = [line for line in lines if "tok/s" in line]
    assert len(kept) == 4
    assert (
        "launch 1  C=1       100.0    101.0    102.0 tok/s  accept 2.70 (planned 2.71)" in kept[0]
    )
    assert "launch 2  C=4       400.0    401.0    402.0 tok/s" in kept[3]
    assert sum("first token after" in line for line in lines) == 2
    # What was only passing is gone, and what it said was drawn.
    assert not any("left" in line or "layer" in line for line in lines)
    drawn = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text_of(console))
    assert "spec-v2 · launch 2/2 · sweep 3/3 at C=4" in drawn
    assert "about 50 s left" in drawn
    assert "layer 8 of 12 made" in drawn


def test_an_interrupt_keeps_the_lines_of_the_running_server() -> None:
    console = terminal()

    def cut_short() -> None:
        with ConsoleObserver(console, launches=2, sweeps=3) as observer:
            observer.starting(Step("sweep", "baseline", 0, 1, 0), 50)
            observer.passed(level_record(tok_s=123.4))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut_short()
    assert any("123.4 tok/s" in line for line in final_lines(console))
    assert text_of(console).count("\x1b[?25l") == text_of(console).count("\x1b[?25h") > 0


def test_in_a_pipe_one_line_a_pass_and_no_escapes() -> None:
    console = Console(file=io.StringIO(), width=80)
    with ConsoleObserver(console, launches=2, sweeps=3) as observer:
        drive(observer)
    text = text_of(console)
    assert "\x1b" not in text
    assert text.count(" tok/s ") == 2 * (2 + 6)
    assert text.count("about 1 min 05 s left") == 2
    assert "layer 8 of 12 made" in text


def test_quiet_prints_nothing_on_either() -> None:
    for console in (terminal(), Console(file=io.StringIO())):
        with ConsoleObserver(console, launches=2, sweeps=3, quiet=True) as observer:
            drive(observer)
        assert text_of(console) == ""


def test_no_color_is_heeded(verdict: Verdict, monkeypatch: pytest.MonkeyPatch) -> None:
    def colours() -> list[str]:
        console = terminal(color_system="standard")
        print_verdict(verdict, console)
        assert "REPRODUCED" in text_of(console)
        return re.findall(r"\x1b\[[\d;]*3[0-7]m", text_of(console))

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert colours()
    monkeypatch.setenv("NO_COLOR", "1")
    assert colours() == []


@pytest.mark.parametrize("width", [40, 60, 100, 200])
def test_changing_lines_never_wrap(width: int) -> None:
    console = terminal(width)
    view = LiveView(console)
    for level in (1, 4):
        for sweep in range(9):
            view.add(level_record(level=level, sweep=sweep, accept_length=3.4))
    view.now("spec-v1 · launch 1/2 · sweep 9/9 at C=4", 100)
    drawn = console.render_lines(view._draw())
    # A wrapped line would leave a copy of itself at every refresh.
    assert len(drawn) == 3


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("layer 8 of 12 made", 2 / 3),
        ("3/4 files", 0.75),
        ("13 of 12", 1.0),
        ("5 of 0", None),
        ("computing checksums", None),
    ],
)
def test_progress_told_in_words(text: str, share: float | None) -> None:
    assert counted(text) == (None if share is None else pytest.approx(share))


def test_a_line_shows_the_newest_passes() -> None:
    line = LevelLine("baseline", 0, 1)
    line.add(level_record(phase="warmup"))
    assert line.text().endswith("warm-up 1")
    for sweep in range(9):
        line.add(level_record(sweep=sweep, tok_s=sweep, failed=1))
    assert line.text().split() == [
        *("baseline", "launch", "1", "C=1", "…", "3.0", "4.0", "5.0", "6.0", "7.0", "8.0"),
        *("tok/s", "9", "FAILED"),
    ]


def test_the_plan_says_how_long_it_takes() -> None:
    assert planned_time(None) == ""
    clock = Clock(plan())
    assert re.fullmatch(r"; about \d+ min \d\d s", planned_time(clock))


def test_a_step_that_takes_too_long_never_fills_the_bar(tmp_path: Path) -> None:
    view = LiveView(terminal())
    view.now("x", 0.0)
    view._told -= 1000
    share, left = view._done()
    assert share is not None
    assert left is not None
    assert 0 <= share <= 1
    assert left >= 0
