"""``kit report``."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

from kit import verdict as judging
from kit.cli.options import resolve_run
from kit.errors import UserError
from kit.golden import golden_for, read_golden
from kit.report.write import MARKDOWN, write_comparison, write_reports
from kit.runfolder import VERDICT, dump, read_run, write_atomic


@click.command()
@click.argument("run", type=click.Path(file_okay=False, path_type=Path), required=False)
@click.option(
    "--golden",
    "golden_file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Golden file to judge against. Default: golden/RIG.yaml.",
)
@click.option(
    "--compare",
    type=click.Path(file_okay=False, path_type=Path),
    nargs=2,
    default=None,
    metavar="A B",
    help="Draw how run B differs from run A; the file lies in B.",
)
@click.option("--open", "open_it", is_flag=True, help="Show it in the web browser.")
@click.option("--markdown", is_flag=True, help="Print report.md too, e.g. for a CI summary.")
def report(
    run: Path | None,
    golden_file: Path | None,
    compare: tuple[Path, Path] | None,
    open_it: bool,
    markdown: bool,
) -> None:
    """Write report.html and report.md of a run folder (the latest by default).

    The exit code is 0 once they are written, whatever the verdict: `kit check` is the one to ask.

    \b
    Examples:
      kit report runs/RUN --open
      kit report runs/RUN --markdown >> "$GITHUB_STEP_SUMMARY"
      kit report --compare runs/BEFORE runs/AFTER
    """
    if compare is not None:
        if run is not None or golden_file is not None or markdown:
            raise click.UsageError("--compare takes two runs and nothing but --open")
        path = write_comparison(*compare)
    else:
        folder = resolve_run(run)
        data = read_run(folder)
        rig = str(data.manifest.rig["name"])
        golden = read_golden(golden_file) if golden_file else golden_for(rig)
        verdict = judging.judge(data, golden)
        write_atomic(folder / VERDICT, dump(verdict))
        written = write_reports(folder, data, verdict, golden)
        if written.html is None:
            raise UserError(
                f"The report could not be made: {written.problem}.",
                f"The verdict is in {folder / VERDICT}; `kit check {folder}` prints it.",
            )
        path = written.html
        if markdown:
            click.echo((folder / MARKDOWN).read_text(encoding="utf-8"), nl=False)
    # Standard output is for the Markdown, if that is asked for.
    click.echo(f"wrote {path}", err=markdown)
    if open_it and not webbrowser.open(path.resolve().as_uri()):
        click.echo(f"kit: no web browser was found; open {path} yourself", err=True)
