"""``kit bench``: one scenario, once; any server with any arrival process; or the load client itself."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import click

from kit.cli.drive import ArrivalParam, drive
from kit.cli.options import (
    Levels,
    backend_option,
    json_option,
    port_option,
    rig_option,
)
from kit.cli.run import measure_and_judge, out_option
from kit.load import Arrival, ClosedLoop
from kit.load.model import Api
from kit.load.selftest import self_test

# The same code as an INVALID run: numbers of such a client would mean nothing.
CLIENT_TOO_SLOW = 3


@click.command()
@click.argument("scenario", required=False)
@rig_option
@click.option(
    "--url", default=None, help="Measure a server that runs already instead of starting one."
)
@click.option("--levels", type=Levels(), default=None, help="Concurrency levels, e.g. 1,4,8.")
@click.option("--sweeps", type=click.IntRange(1, 100), default=1, show_default=True)
@click.option("--stream", is_flag=True, help="Stream the answers: adds time to first token.")
@click.option(
    "--arrival",
    "arrivals",
    type=ArrivalParam(),
    multiple=True,
    help="closed:C, poisson:RATE[:SEED], constant:RATE or trace:FILE (requests a second; a file of seconds); "
    "repeat for several. Figures without a verdict.",
)
@click.option(
    "--api",
    type=click.Choice(["generate", "completions", "chat"]),
    default=None,
    help="Which API is driven: SGLang's own or an OpenAI-compatible one. Figures without a verdict.",
)
@click.option(
    "--model",
    default=None,
    help="Model name for an OpenAI-compatible API. Default: the first listed.",
)
@click.option(
    "--requests",
    "count",
    type=click.IntRange(1, 1_000_000),
    default=None,
    help="Requests an arrival.",
)
@click.option(
    "--tokens",
    type=click.IntRange(1, 100_000),
    default=None,
    help="Output tokens a request. Default: 64.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=None,
    help="Client processes. Default: as many as the rate of an open loop needs, else 1.",
)
@click.option(
    "--self-test",
    "run_self_test",
    is_flag=True,
    help="Measure the load client itself against a built-in null server.",
)
@backend_option
@port_option
@out_option
@json_option
@click.pass_context
def bench(
    ctx: click.Context,
    scenario: str | None,
    rig: str | None,
    url: str | None,
    levels: list[int] | None,
    sweeps: int,
    stream: bool,
    arrivals: tuple[Arrival, ...],
    api: str | None,
    model: str | None,
    count: int | None,
    tokens: int | None,
    workers: int | None,
    run_self_test: bool,
    backend: str,
    port: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure one scenario, once; drive any server; or measure the load client itself.

    \b
    Examples:
      kit bench spec-v2 --rig cpu --levels 1,4
      kit bench spec-v2 --rig cpu --stream --arrival poisson:2
      kit bench --url http://127.0.0.1:8000 --api chat --stream --arrival constant:4
      kit bench --self-test

    KIT_API_KEY is sent as a bearer token where a driven server wants one.
    """
    if run_self_test:
        found = self_test(progress=lambda text: click.echo(text, err=True))
        click.echo(found.text())
        ctx.exit(0 if found.passed else CLIENT_TOO_SLOW)
    if arrivals or api or (url and scenario is None):
        ctx.exit(
            drive(
                scenario=scenario,
                rig=rig,
                url=url,
                backend=backend,
                port=port,
                arrivals=[*arrivals, *(ClosedLoop(c) for c in levels or ([] if arrivals else [1]))],
                api=cast("Api", api or "generate"),
                stream=stream,
                model=model,
                count=count,
                tokens=tokens or 64,
                workers=workers,
                out=out,
                as_json=as_json,
            )
        )
    if model or count or tokens or workers:
        raise click.UsageError(
            "--model, --requests, --tokens and --workers go with --arrival or --api"
        )
    if scenario is None:
        raise click.UsageError("name a scenario, a running server with --url, or give --self-test")
    ctx.exit(
        measure_and_judge(
            rig=rig,
            scenarios=(scenario,),
            levels=levels,
            protocol=None,
            launches=1,
            sweeps=sweeps,
            backend=backend,
            url=url,
            golden_file=None,
            stream=stream,
            port=port,
            out=out,
            quiet=False,
            as_json=as_json,
        )
    )
