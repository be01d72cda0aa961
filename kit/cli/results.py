"""``kit check`` and ``kit golden``."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console

from kit.cli.options import json_option, resolve_run
from kit.golden import golden_for, golden_path, read_golden, to_yaml, write_golden
from kit.merge import merge
from kit.recording import differences, record
from kit.report.finish import finish
from kit.runfolder import dump, read_run
from kit.verdict.compare import compare_runs

run_argument = click.argument(
    "run", type=click.Path(file_okay=False, path_type=Path), required=False
)
golden_option = click.option(
    "--golden",
    "golden_file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Golden file to judge against. Default: golden/RIG.yaml.",
)


@click.command()
@run_argument
@golden_option
@json_option
@click.pass_context
def check(ctx: click.Context, run: Path | None, golden_file: Path | None, as_json: bool) -> None:
    """Judge a run folder (the latest by default) against its golden file.

    Example: kit check runs/20261201T101500Z-cpu
    """
    folder = resolve_run(run)
    data = read_run(folder)
    golden = read_golden(golden_file) if golden_file else golden_for(str(data.manifest.rig["name"]))
    ctx.exit(finish(folder, golden, Console(), as_json=as_json))


@click.command()
@click.argument("run_a", type=click.Path(file_okay=False, path_type=Path))
@click.argument("run_b", type=click.Path(file_okay=False, path_type=Path))
@json_option
@click.pass_context
def compare(ctx: click.Context, run_a: Path, run_b: Path, as_json: bool) -> None:
    """Compare two runs level by level: is RUN_B worse than RUN_A, and why?

    Exit codes: 0 not worse, 1 worse, 3 a run is invalid, 4 too noisy to tell, 5 nothing in common.

    Example: kit compare runs/BEFORE runs/AFTER
    """
    result = compare_runs(read_run(run_a), read_run(run_b))
    if as_json:
        sys.stdout.buffer.write(dump(result))
    else:
        for line in result.lines():
            click.echo(line)
    ctx.exit(result.exit_code)


@click.group("golden")
def golden_group() -> None:
    """Record, show and compare golden files."""


@golden_group.command("record")
@click.argument("runs", nargs=-1, type=click.Path(file_okay=False, path_type=Path))
@click.option("--note", required=True, help="Provenance in words: machine, conditions.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Where to write. Default: golden/RIG.yaml.",
)
@click.option(
    "--decides",
    type=click.Choice(["levels", "claims"]),
    default="levels",
    show_default=True,
    help="claims: absolute throughput is only reported (rigs that are many machines).",
)
def golden_record(runs: tuple[Path, ...], note: str, out: Path | None, decides: str) -> None:
    """Write a golden file from valid runs with at least two launches together (default: the latest run).

    The claims of the file that it replaces (or of the rig's own) are kept, with the ratios of this run.

    Example: kit golden record runs/RUN --note "idle host, 2 cores"
    """
    data = merge([read_run(resolve_run(run)) for run in runs or (None,)])
    rig = str(data.manifest.rig.get("name"))
    target = out or golden_path(rig)
    before = read_golden(target) if target.is_file() else golden_for(rig)
    golden = record(data, note, decides=decides, claims=before.claims if before else None)
    write_golden(golden, target)
    click.echo(f"wrote {target}: {len(golden.claims)} claims kept")


@golden_group.command("show")
@click.argument("rig")
def golden_show(rig: str) -> None:
    """Print the golden file of a rig.

    Example: kit golden show cpu
    """
    click.echo(to_yaml(read_golden(golden_path(rig))), nl=False)


@golden_group.command("diff")
@click.argument("a", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("b", type=click.Path(dir_okay=False, path_type=Path))
def golden_diff(a: Path, b: Path) -> None:
    """Compare two golden files.

    Example: kit golden diff golden/cpu.yaml /tmp/cpu.yaml
    """
    for line in differences(read_golden(a), read_golden(b)):
        click.echo(line)
