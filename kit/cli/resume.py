"""``kit reproduce --resume``: the option, and what the command takes from the run instead of from its options."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from kit import resume
from kit.resume import Resumed

# What decides the numbers comes from the run; these only say where to listen and what to print.
ALLOWED = frozenset({"resume", "port", "url", "golden_file", "quiet", "as_json", "budget"})

resume_option = click.option(
    "--resume",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    metavar="RUN",
    help="Go on with a run that was cut short, by its own plan, at the pass it was in.",
)


def take_up(ctx: click.Context, path: Path) -> Resumed:
    """Read the run that shall go on.

    Raises:
        UsageError: an option was given that the run itself decides.
        UserError: the run cannot go on.
    """
    given = [
        p.opts[0]
        for p in ctx.command.params
        if p.name not in ALLOWED
        and p.name
        and ctx.get_parameter_source(p.name) is ParameterSource.COMMANDLINE
    ]
    if given:
        raise click.UsageError(
            f"--resume goes on by the run's own plan: leave {', '.join(given)} out"
        )
    return resume.load(path)


def chosen_port(ctx: click.Context, resumed: Resumed, port: int) -> int:
    """Return the port given on the command line, else the one that the run had."""
    if ctx.get_parameter_source("port") is ParameterSource.COMMANDLINE:
        return port
    return resumed.port or port
