"""``kit doctor``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import click
from rich.console import Console
from rich.text import Text

from kit import paths
from kit.cli.options import json_option, port_option, rig_option
from kit.doctor.model import Result, Status
from kit.doctor.probes import Job
from kit.doctor.run import ORDER, Report, examine, this_host
from kit.errors import KitError
from kit.fingerprint import gpu_names
from kit.runfolder import dump
from kit.scenarios import Rig, load_rig, pick_rig

COUNTED: tuple[tuple[Status, str], ...] = (
    ("blocker", "blockers"),
    ("warning", "warnings"),
    ("ok", "ok"),
    ("unavailable", "not available here"),
)
MARKS = {
    "ok": ("ok", "green"),
    "warning": ("WARNING", "yellow"),
    "blocker": ("BLOCKER", "red"),
    "unavailable": ("not available", "dim"),
}


def _rig(name: str | None) -> tuple[Rig | None, str]:
    """Return the rig and, where none can be chosen, why: the rest of the machine is looked at all the same."""
    if name:
        return load_rig(name), ""
    try:
        return pick_rig(gpu_names()), ""
    except KitError as error:
        return None, str(error)


def lines(results: Sequence[Result]) -> Iterator[tuple[str, str, str]]:
    """Yield (status, ids, text) a row, the worst first; rows that say the same become one."""
    rows: dict[tuple[Status, str], list[Result]] = {}
    for result in sorted(results, key=lambda r: ORDER[r.status]):
        alone = "" if result.status == "unavailable" else result.id
        rows.setdefault((result.status, alone + result.seen), []).append(result)
    for (status, _), group in rows.items():
        yield status, ", ".join(r.id for r in group), group[0].seen


def print_results(results: Sequence[Result], console: Console) -> None:
    """Print a row a result, with reason, remedy and link where something is wrong."""
    by_id = {r.id: r for r in results}
    for status, ids, seen in lines(results):
        word, style = MARKS[status]
        row = Text.assemble((f"{word:<14}", style), (ids, "bold"), ": ", seen)
        result = by_id.get(ids)
        if result is not None and status in ("warning", "blocker"):
            for more in (result.why, f"→ {result.remedy}", result.link):
                row.append(f"\n{'':<14}{more}" if more else "")
        console.print(row, soft_wrap=True)


def summary(report: Report, seconds: float) -> str:
    """Return the last line of the doctor's output."""
    counts = [f"{len(report.having(status))} {word}" for status, word in COUNTED]
    return f"rig {report.rig or 'none'}, backend {report.backend}: {', '.join(counts)}; {seconds:.1f} s"


@click.command()
@rig_option
@click.option(
    "--backend",
    type=click.Choice(["auto", "process", "compose", "attach"]),
    default="auto",
    show_default=True,
    help="How servers will be run: Docker only matters for compose.",
)
@port_option
@json_option
@click.pass_context
def doctor(ctx: click.Context, rig: str | None, backend: str, port: int, as_json: bool) -> None:
    """Look at this machine before anything is pulled or loaded; exit code 2 when a blocker stands.

    \b
    Examples:
      kit doctor
      kit doctor --rig h200 --backend compose --json
    """
    chosen, why_none = _rig(rig)
    begun = time.monotonic()
    with this_host() as machine:
        report = examine(machine, Job(chosen, backend, port, paths.runs_dir()))
    if as_json:
        click.echo(dump(report), nl=False)
    else:
        console = Console()
        if why_none:
            console.print(f"No rig: {why_none}", markup=False, highlight=False)
        print_results(report.results, console)
        console.print(
            summary(report, time.monotonic() - begun), markup=False, highlight=False, soft_wrap=True
        )
    ctx.exit(report.exit_code)
