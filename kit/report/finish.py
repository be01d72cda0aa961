"""The end of a run: judge it, write the verdict, say it, draw the reports."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from kit import verdict as judging
from kit.golden import Golden
from kit.report.text import print_verdict
from kit.report.write import write_reports
from kit.runfolder import VERDICT, dump, read_run, write_atomic


def finish(
    folder: Path, golden: Golden | None, console: Console, *, as_json: bool, quiet: bool = False
) -> int:
    """Judge the run folder, write verdict.json and the reports, print, and return the exit code.

    The verdict is written and said before anything is drawn, so that drawing can cost it nothing.
    """
    run = read_run(folder)
    verdict = judging.judge(run, golden)
    write_atomic(folder / VERDICT, dump(verdict))
    if as_json:
        sys.stdout.buffer.write(dump(verdict))
        sys.stdout.flush()
    elif quiet:
        _say(console, f"{verdict.status}  {verdict.headline}")
    else:
        print_verdict(verdict, console)
    written = write_reports(folder, run, verdict, golden)
    if written.problem:
        _say(
            Console(stderr=True),
            f"The report was not drawn ({written.problem}); the verdict stands. Try `kit report {folder}`.",
        )
    if not as_json and not quiet:
        _say(console, f"run folder {folder}")
        if written.html:
            _say(console, f"report     {written.html}")
    return verdict.exit_code


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
