"""``kit reproduce`` and ``kit serve``."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

import click
from rich.console import Console

from kit import interrupts, paths, stats
from kit import reproduce as pipeline
from kit import verdict as judging
from kit.backends.auto import backend_for
from kit.budget import plan_for
from kit.cli.follow import shown
from kit.cli.options import (
    Levels,
    backend_option,
    json_option,
    port_option,
    resolve_rig,
    rig_option,
    scenario_option,
    server_backend_option,
)
from kit.cli.resume import chosen_port, resume_option, take_up
from kit.doctor import preflight
from kit.errors import KitError
from kit.golden import Golden, golden_for, read_golden
from kit.records import RunData
from kit.report.console import ConsoleObserver, duration, planned_time
from kit.report.finish import finish
from kit.resume import Resumed
from kit.runfolder import latest_run, read_run
from kit.scenarios import Rig, load_scenario


def out_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option that says where run folders go."""
    return click.option(
        "--out",
        type=click.Path(file_okay=False, path_type=Path),
        default=None,
        help="Folder for run folders. Default: runs/ of the project.",
    )(command)


class Duration(click.ParamType[float]):
    """``90s``, ``15m``, ``1h30m``: seconds."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the duration in seconds."""
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"(?:(\d{1,3})h)?(?:(\d{1,4})m)?(?:(\d{1,6})s)?", str(value))
        hours, minutes, seconds = (int(n or 0) for n in match.groups()) if match else (0, 0, 0)
        total = hours * 3600 + minutes * 60 + seconds
        if not total:
            self.fail(f"{value!r} is not a time such as 90s, 15m or 1h30m", param, ctx)
        return float(total)


def _earlier(rig: Rig, out: Path | None) -> RunData | None:
    """Return the latest run of a rig, for what steps take and how noisy they are; None if there is none to read."""
    folder = latest_run(out or paths.runs_dir(), rig.name)
    try:
        return read_run(folder) if folder else None
    except KitError:
        return None


def _golden(rig: Rig, path: Path | None) -> Golden | None:
    return read_golden(path) if path else golden_for(rig.name)


@click.command()
@rig_option
@scenario_option
@click.option(
    "--levels",
    type=Levels(),
    default=None,
    help="Concurrency levels, e.g. 1,4,8. Default: the rig's.",
)
@click.option(
    "--protocol",
    type=click.Choice(["published", "steady"]),
    default=None,
    help="published: 30 requests a level; steady: more at high C. Default: the rig's.",
)
@click.option(
    "--launches", type=click.IntRange(1, 50), default=None, help="Server starts per scenario."
)
@click.option("--sweeps", type=click.IntRange(1, 100), default=None, help="Sweeps per launch.")
@click.option(
    "--budget",
    type=Duration(),
    default=None,
    help="Time there is, e.g. 15m: plans launches and sweeps that fit and says how precise they will be.",
)
@backend_option
@click.option(
    "--url", default=None, help="Measure a server that runs already (backend attach, one scenario)."
)
@click.option(
    "--golden",
    "golden_file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Golden file to judge against. Default: golden/RIG.yaml.",
)
@click.option("--stream", is_flag=True, help="Stream the answers: adds time to first token.")
@resume_option
@port_option
@out_option
@click.option("--quiet", is_flag=True, help="Print the verdict line only.")
@click.option(
    "--no-doctor",
    is_flag=True,
    envvar="KIT_NO_DOCTOR",
    help="Do not look at the machine first, and go on whatever stands in the way.",
)
@json_option
@click.pass_context
def reproduce(
    ctx: click.Context,
    rig: str | None,
    scenarios: tuple[str, ...],
    levels: list[int] | None,
    protocol: str | None,
    launches: int | None,
    sweeps: int | None,
    budget: float | None,
    backend: str,
    url: str | None,
    golden_file: Path | None,
    stream: bool,
    resume: Path | None,
    port: int,
    out: Path | None,
    quiet: bool,
    no_doctor: bool,
    as_json: bool,
) -> None:
    """Serve the scenarios one after another, measure, and give a verdict.

    \b
    Examples:
      kit reproduce
      kit reproduce --rig cpu -s baseline -s spec-v2 --levels 1,4
      kit reproduce --budget 15m
      kit reproduce --resume runs/20261201T101500Z-cpu
    """
    if budget is not None and (launches or sweeps):
        raise click.UsageError("--budget plans launches and sweeps: give it or them, not both")
    resumed = take_up(ctx, resume) if resume else None
    if resumed is not None:
        rig, backend = str(resumed.manifest.rig.get("name")), resumed.manifest.backend
        scenarios = tuple(resumed.manifest.plan.scenarios)
        port = chosen_port(ctx, resumed, port)
    ctx.exit(
        measure_and_judge(
            rig=rig,
            scenarios=scenarios or pipeline.CORE,
            levels=levels,
            protocol=protocol,
            launches=launches,
            sweeps=sweeps,
            backend=backend,
            url=url,
            golden_file=golden_file,
            stream=stream,
            port=port,
            out=out,
            quiet=quiet,
            as_json=as_json,
            budget_s=budget,
            resumed=resumed,
            doctor=not no_doctor,
        )
    )


def measure_and_judge(
    *,
    rig: str | None,
    scenarios: tuple[str, ...],
    levels: list[int] | None,
    protocol: str | None,
    launches: int | None,
    sweeps: int | None,
    backend: str,
    url: str | None,
    golden_file: Path | None,
    stream: bool,
    port: int,
    out: Path | None,
    quiet: bool,
    as_json: bool,
    budget_s: float | None = None,
    resumed: Resumed | None = None,
    doctor: bool = False,
) -> int:
    """Measure and judge as ``kit reproduce`` does; return the exit code."""
    # With --json only the verdict goes to standard output.
    console = Console(stderr=as_json)
    begun = time.monotonic()
    chosen = resolve_rig(rig)
    for name in scenarios:
        load_scenario(name)
    golden = _golden(chosen, golden_file)
    server, reason = backend_for(backend, chosen, port, url)
    if url and len(set(scenarios)) != 1:
        raise click.UsageError("a server that runs already serves one scenario: name it with -s")
    wanted = pipeline.Wanted(
        scenarios=scenarios,
        levels=levels,
        launches=launches,
        sweeps=sweeps,
        stream=stream,
        protocol=cast("Literal['published', 'steady'] | None", protocol),
    )
    if resumed is not None:
        wanted = pipeline.resumed_wanted(resumed.manifest.plan)
    plan = pipeline.plan_config(chosen, wanted)
    earlier = _earlier(chosen, out)
    budgeted = None
    if budget_s is not None and resumed is None:
        clock = pipeline.clock_for(plan, golden, earlier)
        budgeted = plan_for(budget_s, plan, clock, golden, earlier)
        wanted = dataclasses.replace(
            wanted,
            launches=budgeted.plan.launches,
            sweeps=budgeted.plan.sweeps,
            # Time left over buys further launches if the noise is larger than planned with.
            max_launches=stats.planning.MAX_LAUNCHES,
        )
        plan = pipeline.plan_config(chosen, wanted)
    observer = ConsoleObserver(console, plan.launches, plan.sweeps, quiet=quiet)
    try:
        with observer:
            observer.note(f"rig {chosen.name}: {chosen.title}; backend {server.name} ({reason})")
            observer.note(
                f"plan: {', '.join(plan.scenarios)} × {plan.launches} launches × {plan.sweeps} sweeps "
                f"at C = {', '.join(map(str, plan.levels))}, protocol {plan.protocol}, "
                f"{plan.output_tokens} output tokens"
                + planned_time(None if resumed else pipeline.clock_for(plan, golden, earlier))
            )
            if budgeted is not None:
                observer.note(f"budget {duration(budget_s or 0)}: {budgeted.text()}")
            if resumed is not None:
                observer.note(resumed.text())
            if chosen.caveat:
                observer.note(chosen.caveat)
            seen = preflight.before(chosen, server.name, port, observer.note, out) if doctor else []
            models = pipeline.ensure_pair(chosen, observer.phase)
            folder = pipeline.run(
                chosen,
                wanted,
                server,
                observer,
                command=sys.argv,
                models=models,
                port=port,
                out=out,
                backend_reason=reason,
                golden=golden,
                more=lambda path, _launches: [
                    wide.text() for wide in judging.too_wide(read_run(path), golden)
                ],
                ends_at=None if budget_s is None else begun + budget_s,
                earlier=earlier,
                resumed=resumed,
                doctor=preflight.as_records(seen),
            )
    except KeyboardInterrupt:
        return _interrupted(observer)
    except KitError:
        if observer.folder:
            console.print(
                f"What was measured is kept in {observer.folder}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
        raise
    _tell_changed(golden, chosen, golden_file)
    if doctor and judging.judge(read_run(folder), golden).status != "REPRODUCED":
        preflight.again(chosen, server.name, folder)
    code = finish(folder, golden, console, as_json=as_json, quiet=quiet)
    if not quiet:
        console.print(f"took {duration(time.monotonic() - begun)}", highlight=False)
    return code


def _tell_changed(golden: Golden | None, rig: Rig, path: Path | None) -> None:
    """Say so if the golden file is another one than at the start, or cannot be read any more."""
    try:
        if _golden(rig, path) == golden:
            return
    except KitError:
        pass
    click.echo(
        f"kit: The golden file of {rig.name} changed during the run; the verdict is by what it said at the start.",
        err=True,
    )


def _interrupted(observer: ConsoleObserver) -> int:
    if observer.folder is None:
        click.echo("kit: Interrupted before anything was measured.", err=True)
    else:
        data = read_run(observer.folder)
        passes = sum(r.phase == "measure" for r in data.levels)
        click.echo(
            f"kit: Interrupted; {passes} measured passes and {len(data.requests)} requests are kept in "
            f"{observer.folder}\n"
            f"     Judge them with `kit check {observer.folder}`, or go on with "
            f"`kit reproduce --resume {observer.folder}`.",
            err=True,
        )
    return interrupts.exit_code()


@click.command()
@click.argument("scenario")
@rig_option
@server_backend_option
@port_option
@click.option(
    "--log",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Where the server's log goes. Default: runs/serve-SCENARIO.log",
)
@click.option("--quiet", is_flag=True, help="Do not show the server's log.")
def serve(
    scenario: str, rig: str | None, backend: str, port: int, log: Path | None, quiet: bool
) -> None:
    """Serve one scenario until Ctrl-C, and show the server's log as it comes.

    Example: kit serve spec-v2 --rig cpu
    """
    chosen = resolve_rig(rig)
    loaded = load_scenario(scenario)
    server_of, reason = backend_for(backend, chosen, port)
    models = pipeline.ensure_pair(chosen, lambda text: click.echo(text, err=True))
    command = pipeline.command_for(loaded, chosen, models, port)
    if log is None:
        log = paths.runs_dir() / f"serve-{scenario}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
    click.echo(
        f"starting {scenario} on rig {chosen.name}; backend {server_of.name} ({reason}); log {log}",
        err=True,
    )
    patience = chosen.server.startup_timeout_s
    # The log goes to standard output, what the kit itself says to standard error.
    following = contextlib.nullcontext() if quiet else shown(log, click.echo)
    with following, server_of.serve(command, log, patience, lambda _: None) as server:
        click.echo(f"{scenario} decodes at {server.base_url}; Ctrl-C ends it", err=True)
        try:
            while server.alive():
                time.sleep(0.5)
        except KeyboardInterrupt:
            click.echo("stopping", err=True)
            return
        raise server.why_dead()
