"""``kit lossless``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import click

from kit import paths
from kit import reproduce as pipeline
from kit.backends.process import ProcessBackend, ProcessServer
from kit.cli.options import port_option, resolve_rig, rig_option
from kit.lossless import TIE, measure_baseline, measure_speculation
from kit.planted import Plan
from kit.prompts import PromptSource, tokenize_chat
from kit.scenarios import load_scenario


@click.command()
@click.argument("scenario")
@rig_option
@click.option("--prompts", "count", type=click.IntRange(2, 1000), default=30, show_default=True)
@click.option("--tokens", type=click.IntRange(2, 4096), default=128, show_default=True)
@click.option(
    "--crowd",
    type=click.IntRange(2, 256),
    default=30,
    show_default=True,
    help="Requests at once in the crowded passes.",
)
@click.option(
    "--tie",
    type=click.FloatRange(0, 20, min_open=True),
    default=TIE,
    show_default=True,
    help="Gap of log-probability below which either token may be right.",
)
@port_option
@click.pass_context
def lossless(
    ctx: click.Context,
    scenario: str,
    rig: str | None,
    count: int,
    tokens: int,
    crowd: int,
    tie: float,
    port: int,
) -> None:
    """Check that speculation leaves greedy output unchanged: for real weights.

    Serves the baseline, then SCENARIO. A planted pair needs no such check: `kit reproduce` compares every output of
    it with the known one. Exit codes: 0 lossless, 1 not.

    Example: kit lossless spec-v2 --rig rtx-pro-6000-x8
    """
    pipeline.require_engine()
    chosen = resolve_rig(rig)
    models = pipeline.ensure_pair(chosen, lambda text: click.echo(text, err=True))
    if models.plan_dir is not None:
        source = PromptSource.planted(Plan.load(Path(models.plan_dir)), chosen.load.input_tokens)
    else:
        source = PromptSource.chat(tokenize_chat(models.target))
    prompts = source.measured(1, count)
    crowd = min(crowd, count, chosen.max_running_requests)
    logs = paths.runs_dir()
    logs.mkdir(parents=True, exist_ok=True)

    def serving(name: str) -> AbstractContextManager[ProcessServer]:
        command = pipeline.command_for(load_scenario(name), chosen, models, port)
        log = logs / f"lossless-{name}.log"
        click.echo(f"serving {name}; log {log}", err=True)
        return ProcessBackend(port=port).serve(command, log, chosen.server.startup_timeout_s)

    load_scenario(scenario)
    with serving("baseline") as server:
        baseline = measure_baseline(server.base_url, prompts, tokens, crowd, tie)
    with serving(scenario) as server:
        report = measure_speculation(
            server.base_url, scenario, baseline, prompts, tokens, crowd, tie
        )
    for line in report.lines():
        click.echo(line)
    ctx.exit(0 if report.status == "LOSSLESS" else 1)
