"""Options that several commands share, and how they are resolved."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from kit import fingerprint, paths
from kit.backends.auto import NAMES
from kit.errors import UserError
from kit.reproduce import DEFAULT_PORT
from kit.runfolder import latest_run
from kit.scenarios import Rig, all_rigs, all_scenarios, load_rig, pick_rig


def _complete_rig(_ctx: click.Context, _param: click.Parameter, start: str) -> list[str]:
    return [r.name for r in all_rigs() if r.name.startswith(start)]


def _complete_scenario(_ctx: click.Context, _param: click.Parameter, start: str) -> list[str]:
    return [s.name for s in all_scenarios() if s.name.startswith(start)]


rig_option = click.option(
    "--rig",
    "-r",
    default=None,
    shell_complete=_complete_rig,
    help="Machine class and model pair; by default what fits this host.",
)
port_option = click.option(
    "--port",
    default=DEFAULT_PORT,
    show_default=True,
    type=click.IntRange(1, 65535),
    help="Port of the server.",
)
backend_option = click.option(
    "--backend",
    type=click.Choice(NAMES),
    default="auto",
    show_default=True,
    help="How servers are run. auto: in containers where an engine has the image, else as processes.",
)
server_backend_option = click.option(
    "--backend",
    type=click.Choice([name for name in NAMES if name != "attach"]),
    default="auto",
    show_default=True,
    help="How the server is run. auto: in a container where an engine has the image, else as a process.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
scenario_option = click.option(
    "--scenario",
    "-s",
    "scenarios",
    multiple=True,
    shell_complete=_complete_scenario,
    help="Scenario to run; repeat for several. Default: baseline, spec-v1, spec-v2.",
)


class Levels(click.ParamType[list[int]]):
    """``1,4,8``."""

    name = "levels"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[int]:
        """Return the levels as integers."""
        if isinstance(value, list):
            return value
        if not re.fullmatch(r"\d{1,4}(,\d{1,4})*", str(value)):
            self.fail(f"{value!r} is not a list of levels such as 1,4,8", param, ctx)
        return [int(v) for v in str(value).split(",")]


def resolve_rig(name: str | None) -> Rig:
    """Return the named rig, or the one that fits this host."""
    return load_rig(name) if name else pick_rig(fingerprint.gpu_names())


def resolve_run(run: Path | None) -> Path:
    """Return the run folder named, or the latest one.

    Raises:
        UserError: there is none.
    """
    if run is not None:
        return run
    found = latest_run(paths.runs_dir())
    if found is None:
        raise UserError(
            f"There is no run in {paths.runs_dir()}.",
            "Make one with `kit reproduce`, or name a run folder.",
        )
    click.echo(f"Run: {found}", err=True)
    return found
