"""``kit bench`` with ``--arrival`` or ``--api``: drive a server with any arrival process and print what came back."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from kit import drive as driving
from kit import paths
from kit import reproduce as pipeline
from kit.backends.auto import backend_for
from kit.cli.options import resolve_rig
from kit.load import Arrival, Endpoint, run_level
from kit.load.arrivals import parse_arrival
from kit.load.model import Api
from kit.planted import Plan
from kit.runfolder import write_atomic
from kit.scenarios import load_scenario

API_KEY = "KIT_API_KEY"
# Requests that warm a server up before each level.
WARM = 2
# Of a planted prompt; chat prompts are as long as they are.
PROMPT_TOKENS = 64
TIMEOUT_S = 600.0


class ArrivalParam(click.ParamType[Arrival]):
    """``closed:8``, ``poisson:2.5``, ``constant:4``, ``trace:FILE``."""

    name = "arrival"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Arrival:
        """Return the arrival process."""
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        if not re.fullmatch(r"(closed|poisson|constant|trace):.+", value, re.DOTALL):
            self.fail(
                f"{value!r} is not an arrival such as closed:8, poisson:2.5, constant:4, trace:FILE",
                param,
                ctx,
            )
        return parse_arrival(value)


@contextlib.contextmanager
def served(
    scenario: str | None, rig: str | None, url: str | None, backend: str, port: int
) -> Iterator[tuple[str, Plan | None]]:
    """Give the address of a server that answers and, where the kit made its model, the plan of it."""
    if url is not None and scenario is None:
        # Any server: nothing is asked of it but the API that will be driven.
        yield url.rstrip("/"), None
        return
    if scenario is None:
        raise click.UsageError("name a scenario to serve, or a running server with --url")
    chosen = resolve_rig(rig)
    loaded = load_scenario(scenario)
    server_of, reason = backend_for(backend, chosen, port, url)
    models = pipeline.ensure_pair(chosen, lambda text: click.echo(text, err=True))
    planted = pipeline.pair_spec(chosen) is not None
    plan = Plan.load(pipeline.planted_dir(chosen)) if planted else None
    log = paths.runs_dir() / f"bench-{scenario}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    click.echo(
        f"{scenario} on rig {chosen.name}; backend {server_of.name} ({reason}); log {log}", err=True
    )
    command = pipeline.command_for(loaded, chosen, models, port)
    with server_of.serve(command, log, chosen.server.startup_timeout_s, lambda _: None) as server:
        yield server.base_url, plan


def drive(
    *,
    scenario: str | None,
    rig: str | None,
    url: str | None,
    backend: str,
    port: int,
    arrivals: list[Arrival],
    api: Api,
    stream: bool,
    model: str | None,
    count: int | None,
    tokens: int,
    workers: int | None,
    out: Path | None,
    as_json: bool,
) -> int:
    """Drive one server with each arrival process; print and, with ``out``, write what came back.

    Returns:
        0, or 3 where a request failed or the client was the bottleneck: such numbers are not the server's.
    """
    key = os.environ.get(API_KEY)
    found: list[dict[str, Any]] = []
    sound = True
    with served(scenario, rig, url, backend, port) as (base_url, plan):
        if api != "generate" and model is None:
            model = driving.served_model(base_url, key)
        endpoint = Endpoint(base_url, api, stream=stream, model=model, api_key=key)
        sent = 0
        for wanted in arrivals:
            number = driving.count_for(wanted, count)
            arrival = driving.limited(wanted, number)
            # Prompts of its own for every level and its warm-up: none is in the server's cache.
            warm = driving.requests_for(api, WARM, tokens, PROMPT_TOKENS, plan, sent)
            requests = driving.requests_for(api, number, tokens, PROMPT_TOKENS, plan, sent + WARM)
            sent += WARM + number
            endpoint = driving.warm_up(endpoint, warm, TIMEOUT_S)
            level = run_level(
                endpoint,
                requests,
                arrival,
                timeout_s=TIMEOUT_S,
                workers=workers or driving.workers_of(arrival, tokens, stream),
            )
            outcome = driving.outcome(endpoint, arrival, requests, level, plan)
            sound = sound and driving.is_sound(outcome)
            found.append(outcome)
            if not as_json:
                click.echo(driving.text(outcome))
            if out is not None:
                out.mkdir(parents=True, exist_ok=True)
                path = (
                    out / f"load-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{len(found)}.json"
                )
                write_atomic(path, driving.to_json(outcome, level))
                click.echo(f"requests and figures: {path}", err=True)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    return 0 if sound else 3
