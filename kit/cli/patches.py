"""``kit patches``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kit import patches


def _site_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--site",
        type=click.Path(file_okay=False, path_type=Path),
        default=None,
        help="The site-packages folder that holds sglang. Default: this Python's.",
    )(command)


def _json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def _dry_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--dry-run", is_flag=True, help="Say what would change, change nothing.")(
        command
    )


def _print(lines: list[str], data: Any, as_json: bool) -> None:
    click.echo(json.dumps(data, indent=2, default=str) if as_json else "\n".join(lines))


@click.group("patches")
def patches_group() -> None:
    """List, apply and verify the patches to SGLang."""


@patches_group.command("list")
@_site_option
@_json_option
def patches_list(site: Path | None, as_json: bool) -> None:
    """Print each patch, its switch, and whether it is live.

    Example: kit patches list
    """
    switches = {p.id: p.header.get("Switch", "") for p in patches.available()}
    states = patches.live(site)
    lines = []
    for state in states:
        lines += [state.line(), f"      switch: {switches[state.id]}"]
    data = [{**dataclasses.asdict(s), "switch": switches[s.id]} for s in states]
    _print(lines, data, as_json)


@patches_group.command("apply")
@_site_option
@_dry_option
@_json_option
def patches_apply(site: Path | None, dry_run: bool, as_json: bool) -> None:
    """Apply the series. Done twice, it changes nothing.

    Every patch is off until its switch is set. A file that is neither as released nor as patched is
    refused, and then nothing is changed.

    Example: kit patches apply --dry-run
    """
    outcome = patches.apply(site, dry_run=dry_run)
    _print(outcome.lines(), dataclasses.asdict(outcome), as_json)


@patches_group.command("revert")
@_site_option
@_dry_option
@_json_option
def patches_revert(site: Path | None, dry_run: bool, as_json: bool) -> None:
    """Take the series back, to SGLang as released.

    Example: kit patches revert
    """
    outcome = patches.revert(site, dry_run=dry_run)
    _print(outcome.lines(), dataclasses.asdict(outcome), as_json)


@patches_group.command("verify")
@_site_option
@_json_option
@click.pass_context
def patches_verify(ctx: click.Context, site: Path | None, as_json: bool) -> None:
    """Check by checksum that the whole series is live.

    Exit code 3 where it is not.

    Example: kit patches verify
    """
    report = patches.verify(site)
    _print(report.lines(), dataclasses.asdict(report), as_json)
    ctx.exit(0 if report.ok else 3)
