"""``kit fingerprint``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from kit import fingerprint, fingerprint_fields
from kit.cli.options import json_option
from kit.errors import UserError
from kit.runfolder import dump, read_manifest


@click.group("fingerprint", invoke_without_command=True)
@click.option(
    "--describe",
    is_flag=True,
    help="Say of each field what it is, its unit, why it matters and whether it must match to compare.",
)
@json_option
@click.pass_context
def fingerprint_group(ctx: click.Context, describe: bool, as_json: bool) -> None:
    """Print what machine and software this is; holds no serial numbers and no names.

    \b
    Examples:
      kit fingerprint
      kit fingerprint --describe
    """
    if ctx.invoked_subcommand:
        return
    if describe:
        _describe(as_json)
        return
    found = fingerprint.collect()
    if as_json:
        click.echo(dump({"hash": found.hash, **found.model_dump(mode="json")}), nl=False)
        return
    click.echo(f"hash {found.hash}")
    for name, value in found.model_dump(mode="json").items():
        what = fingerprint.Fingerprint.model_fields[name].description
        must = " (must match to compare)" if name in fingerprint.must_match(found) else ""
        click.echo(f"{name:<18} {value}{f'  # {what}{must}' if what else ''}")


def _describe(as_json: bool) -> None:
    if as_json:
        listed = [
            {"name": name, "unit": unit or None, "why": why, "must_match": must}
            for name, unit, why, must in fingerprint_fields.rows()
        ]
        click.echo(dump({"fields": listed, "note": fingerprint_fields.NOTE}), nl=False)
        return
    for name, unit, why, must in fingerprint_fields.rows():
        click.echo(f"{name}{f' ({unit})' if unit else ''}\n    {why}\n    must match: {must}")
    click.echo(fingerprint_fields.NOTE)


def _read(path: Path) -> fingerprint.Fingerprint:
    """Read the fingerprint of a run folder, or one that ``kit fingerprint --json`` printed into a file.

    Raises:
        UserError: there is none.
    """
    if path.is_dir():
        data: Any = read_manifest(path).fingerprint
    else:
        try:
            data = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read as a fingerprint: {error}.") from None
    try:
        return fingerprint.Fingerprint.model_validate(data)
    except ValidationError:
        raise UserError(
            f"{path} holds no fingerprint.",
            "Name a run folder, or a file written by `kit fingerprint --json`.",
        ) from None


@fingerprint_group.command("diff")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
def fingerprint_diff(a: Path, b: Path) -> None:
    """Compare the machines of two run folders, or of files that ``kit fingerprint --json`` wrote.

    Example: kit fingerprint diff runs/A runs/B
    """
    one, two = _read(a), _read(b)
    click.echo(f"Tier: {fingerprint.TIER_TEXT[fingerprint.compare(one, two)]}")
    for line in fingerprint.differences(one, two):
        click.echo(line)
