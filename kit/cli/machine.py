"""``kit fingerprint``."""

from __future__ import annotations

from pathlib import Path

import click

from kit import fingerprint
from kit.cli.options import json_option
from kit.runfolder import dump, read_manifest


@click.group("fingerprint", invoke_without_command=True)
@json_option
@click.pass_context
def fingerprint_group(ctx: click.Context, as_json: bool) -> None:
    """Print what machine and software this is; holds no serial numbers and no names.

    Example: kit fingerprint
    """
    if ctx.invoked_subcommand:
        return
    found = fingerprint.collect()
    if as_json:
        click.echo(dump({"hash": found.hash, **found.model_dump(mode="json")}), nl=False)
        return
    click.echo(f"hash {found.hash}")
    for name, value in found.model_dump(mode="json").items():
        click.echo(f"{name:<18} {value}")


@fingerprint_group.command("diff")
@click.argument("a", type=click.Path(file_okay=False, path_type=Path))
@click.argument("b", type=click.Path(file_okay=False, path_type=Path))
def fingerprint_diff(a: Path, b: Path) -> None:
    """Compare the machines of two run folders.

    Example: kit fingerprint diff runs/A runs/B
    """
    one, two = (
        fingerprint.Fingerprint.model_validate(read_manifest(path).fingerprint) for path in (a, b)
    )
    click.echo(f"Tier: {fingerprint.TIER_TEXT[fingerprint.compare(one, two)]}")
    for line in fingerprint.differences(one, two):
        click.echo(line)
