"""``kit clean``: what an earlier crash left."""

from __future__ import annotations

import sys

import click

from kit import clean as cleaning
from kit import paths

NOT_REMOVED = 1


@click.command("clean")
@click.option("--dry-run", is_flag=True, help="List only.")
@click.option("--yes", "-y", is_flag=True, help="Remove without asking.")
@click.pass_context
def clean(ctx: click.Context, dry_run: bool, yes: bool) -> None:
    """Find servers, containers and files that a crashed kit left, and offer to remove them.

    Only what carries the kit's own mark and whose kit is gone is offered; a running kit is never touched. Runs with
    anything measured in them stay.

    Exit codes: 0 nothing is left (or only listed), 1 something could not be removed.

    \b
    Examples:
      kit clean --dry-run
      kit clean --yes
    """
    found, blind = cleaning.find(paths.runs_dir())
    if blind:
        click.echo(f"Containers were not looked at: {blind}", err=True)
    if not found:
        click.echo("Nothing is left behind.")
        return
    for orphan in found:
        click.echo(f"{orphan.what:<11}{orphan.name}" + (f"  of {orphan.run}" if orphan.run else ""))
    if dry_run:
        return
    if not yes:
        if not sys.stdin.isatty():
            click.echo("Give --yes to remove them.", err=True)
            return
        if not click.confirm(f"Remove {'it' if len(found) == 1 else f'these {len(found)}'}?"):
            return
    failed = 0
    for orphan in found:
        problem = orphan.remove()
        failed += bool(problem)
        if problem:
            click.echo(f"kit: {orphan.what} {orphan.name}: {problem}", err=True)
    click.echo(f"removed {len(found) - failed} of {len(found)}")
    ctx.exit(NOT_REMOVED if failed else 0)
