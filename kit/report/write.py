"""Write the reports of a run into its folder. A report that cannot be drawn never costs a run anything."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kit.golden import Golden
from kit.records import RunData
from kit.report.markdown import render_markdown
from kit.runfolder import read_run, write_atomic
from kit.verdict.compare import compare_runs
from kit.verdict.model import Verdict

HTML, MARKDOWN = "report.html", "report.md"


@dataclass(frozen=True)
class Written:
    """What became of the reports.

    Attributes:
        html: The HTML report, None if it could not be made.
        markdown: The short one, None if it could not be made.
        problem: What went wrong, in one sentence; empty if nothing did.
    """

    html: Path | None
    markdown: Path | None
    problem: str = ""


def write_reports(folder: Path, run: RunData, verdict: Verdict, golden: Golden | None) -> Written:
    """Write report.md and report.html into a run folder.

    Never raises for a report's sake: the run is measured and judged by then, and its exit code stands. Ctrl-C
    while it draws ends the drawing only.
    """
    markdown: Path | None = None
    try:
        write_atomic(folder / MARKDOWN, render_markdown(run, verdict).encode())
        markdown = folder / MARKDOWN
        # Drawing needs matplotlib, half a second to import and absent from a bare installation.
        from kit.report.html.page import render

        text = render(run, verdict, golden, folder)
        write_atomic(folder / HTML, text.encode("utf-8", "replace"))
    except KeyboardInterrupt:
        return Written(None, markdown, "drawing it was interrupted")
    except Exception as error:  # noqa: BLE001 - whatever it is, the run counts more
        said = (str(error).strip() or repr(error)).splitlines()[0]
        return Written(None, markdown, f"{type(error).__name__}: {said}")
    return Written(folder / HTML, markdown)


def write_comparison(folder_a: Path, folder_b: Path) -> Path:
    """Write how run B differs from run A as HTML into B's folder, and return the file.

    Raises:
        UserError: a folder is no run, or the file cannot be written.
    """
    a, b = read_run(folder_a), read_run(folder_b)
    from kit.report.html.compare import render_comparison

    path = folder_b / f"compare-{folder_a.resolve().name}.html"
    text = render_comparison(a, b, compare_runs(a, b))
    write_atomic(path, text.encode("utf-8", "replace"))
    return path
