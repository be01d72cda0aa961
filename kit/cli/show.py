"""``kit scenarios`` and ``kit show``."""

from __future__ import annotations

import json
import shlex

import click

from kit import reproduce as pipeline
from kit.cli.options import json_option, port_option, resolve_rig, rig_option
from kit.errors import UserError
from kit.scenarios import (
    ModelPaths,
    PathsPairConfig,
    all_rigs,
    all_scenarios,
    load_scenario,
    model_paths,
)


@click.command()
@json_option
def scenarios(as_json: bool) -> None:
    """List scenarios and rigs.

    Example: kit scenarios
    """
    known = all_scenarios()
    rigs = all_rigs()
    if as_json:
        click.echo(
            json.dumps(
                {
                    "scenarios": [s.model_dump(mode="json", by_alias=True) for s in known],
                    "rigs": [r.model_dump(mode="json", by_alias=True) for r in rigs],
                },
                indent=2,
            )
        )
        return
    click.echo("Scenarios")
    for s in known:
        mark = "" if s.kind == "core" else "  (variant)"
        click.echo(f"  {s.name:<20} {s.title}{mark}")
    click.echo("Rigs")
    for r in rigs:
        levels = ", ".join(map(str, r.load.levels))
        click.echo(f"  {r.name:<20} {r.title}; C = {levels}; {r.load.protocol}")


@click.command()
@click.argument("scenario")
@rig_option
@port_option
@json_option
def show(scenario: str, rig: str | None, port: int, as_json: bool) -> None:
    """Print the exact argv and environment of a scenario's server.

    The output can be pasted into a shell.

    Example: kit show spec-v2 --rig cpu
    """
    chosen = resolve_rig(rig)
    loaded = load_scenario(scenario)
    try:
        models = model_paths(chosen, pipeline.planted_dir(chosen))
    except UserError:
        # Showing needs no weights: what is missing is shown as the variable to set.
        pair = chosen.pair
        assert isinstance(pair, PathsPairConfig)
        models = ModelPaths(target=f"${pair.target_env}", draft=f"${pair.draft_env}")
    command = pipeline.command_for(loaded, chosen, models, port)
    if as_json:
        click.echo(json.dumps(command.model_dump(mode="json"), indent=2))
        return
    for name in sorted(command.env):
        click.echo(f"{name}={shlex.quote(command.env[name])} \\")
    words = ["python", *(a if a.startswith("$") else shlex.quote(a) for a in command.argv)]
    lines = [words[0] + " " + " ".join(words[1:3])]
    for word in words[3:]:
        if word.startswith("--"):
            lines.append(f"  {word}")
        else:
            lines[-1] += f" {word}"
    click.echo(" \\\n".join(lines))
