"""Drive any server that speaks one of the three APIs, with any arrival process: what to send, and what came back.

This measures a server as it is; no verdict follows from it. ``kit bench`` with ``--arrival`` or ``--api`` uses it.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import orjson

from kit.errors import EngineError, UserError
from kit.load import (
    Arrival,
    ClosedLoop,
    Endpoint,
    LevelResult,
    Request,
    RequestError,
    Trace,
    run_level,
    summarize,
    workers_for,
)
from kit.load.arrivals import arrival_text
from kit.load.bodies import asking_less
from kit.load.model import Api
from kit.load.workers import result_to_json
from kit.planted import Plan
from kit.prompts import WARM_BASE, chat_texts

READ_LIMIT = 8 << 20
# Where nothing else says how many: enough for a 95th percentile that is not the largest value.
FEWEST = 40
PER_SLOT = 4
COUNTED = {
    "final": "at the end only: the server refuses to count with every event",
    "unasked": "as the server gives them: it refuses stream_options",
}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect could carry the key to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Refuse: the answer counts as an error."""


def served_model(base_url: str, api_key: str | None = None) -> str | None:
    """Return the first model that ``/v1/models`` lists, None where the server has no such list.

    Raises:
        EngineError: there is no server, or it refuses the key.
    """
    root = base_url.rstrip("/").removesuffix("/v1")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with opener.open(
            urllib.request.Request(f"{root}/v1/models", headers=headers), timeout=10
        ) as reply:
            models = json.loads(reply.read(READ_LIMIT))["data"]
        return str(models[0]["id"])
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (401, 403):
            raise EngineError(
                f"The server at {root} refuses the key (HTTP {error.code}).", "Set KIT_API_KEY."
            ) from None
        return None
    except OSError as error:
        raise EngineError(
            f"The server at {root} does not answer: {error}.",
            "Is it running, and is the URL right?",
        ) from None
    except (ValueError, KeyError, IndexError, TypeError):
        return None


def count_for(arrival: Arrival, count: int | None) -> int:
    """Return how many requests are sent.

    Raises:
        UserError: a trace has fewer times than requests were asked for.
    """
    if isinstance(arrival, Trace):
        if count is not None and count > len(arrival.times):
            raise UserError(
                f"The trace has {len(arrival.times)} times, fewer than {count} requests.",
                "Leave --requests out.",
            )
        return len(arrival.times) if count is None else count
    if count is not None:
        return count
    return (
        max(FEWEST, PER_SLOT * arrival.concurrency) if isinstance(arrival, ClosedLoop) else FEWEST
    )


def requests_for(
    api: Api, count: int, tokens: int, prompt_tokens: int, plan: Plan | None, first: int = 0
) -> list[Request]:
    """Return requests whose prompts all differ: token ids of a planted pair where there is one, else chat prompts.

    Args:
        api: The chat API takes text only.
        count: How many.
        tokens: Output tokens of each.
        prompt_tokens: Length of a planted prompt.
        plan: The pair's plan.
        first: Prompts are numbered from here.
    """
    if plan is not None and api != "chat":
        return [
            Request(i, tokens, prompt_ids=plan.prompt(WARM_BASE // 2 + first + i, prompt_tokens))
            for i in range(count)
        ]
    texts = chat_texts()
    # A number in front makes the prompt its own where there are more requests than texts.
    return [
        Request(i, tokens, text=f"({first + i}) {texts[(first + i) % len(texts)]}")
        for i in range(count)
    ]


def workers_of(arrival: Arrival, tokens: int, stream: bool) -> int:
    """Return the client processes that an open loop of streams needs: 1 where the rate of events is not known.

    An event a token is the most; a closed loop goes as fast as the server, which only a measurement tells.
    """
    if not stream or isinstance(arrival, ClosedLoop):
        return 1
    if isinstance(arrival, Trace):
        span = arrival.times[-1] - arrival.times[0] if arrival.times else 0.0
        rate = len(arrival.times) / span if span > 0 else 0.0
    else:
        rate = arrival.rate
    return workers_for(rate * tokens)


def limited(arrival: Arrival, count: int) -> Arrival:
    """Return a trace cut to ``count`` times; anything else as it is."""
    return Trace(arrival.times[:count]) if isinstance(arrival, Trace) else arrival


def warm_up(endpoint: Endpoint, requests: Sequence[Request], timeout_s: float) -> Endpoint:
    """Send ``requests`` before anything is measured; return the endpoint as the server accepts to be asked.

    A server that refuses them all with HTTP 400 or 422 is asked again for fewer counts: for a final one only, then
    without ``stream_options``. So no request of a level is sent twice.

    Raises:
        EngineError: all of them failed: there is nothing to measure.
    """
    first: RequestError | None = None
    while True:
        level = run_level(
            endpoint, requests, ClosedLoop(max(1, len(requests))), timeout_s=timeout_s
        )
        errors = [r.error for r in level.results if r.error]
        if not errors or len(errors) < len(requests):
            return endpoint
        first = first or errors[0]
        less = asking_less(endpoint, level.results)
        if less is None:
            break
        endpoint = less
    # Refused to the last: what the server said to the first question tells most.
    told = first if errors[0].kind == "http-status" else errors[0]
    raise EngineError(
        f"The server at {endpoint.base_url} does not answer as {endpoint.api}:"
        f" {told.kind}, {told.message[:200]}.",
        "Is it the right --api, and is the server ready?",
    )


def outcome(
    endpoint: Endpoint,
    arrival: Arrival,
    requests: Sequence[Request],
    level: LevelResult,
    plan: Plan | None = None,
) -> dict[str, Any]:
    """Return what came back, as plain JSON values. Pure.

    ``differing`` counts the outputs that are not the planted ones, None where no output could be compared.
    """
    by_index = {r.index: r for r in requests}
    compared = [
        plan.first_mismatch(ids, r.output_ids) is not None
        for r in level.results
        if plan is not None and r.output_ids is not None
        if (ids := by_index[r.index].prompt_ids) is not None
    ]
    return {
        "url": endpoint.base_url,
        "api": endpoint.api,
        "stream": endpoint.stream,
        "usage": endpoint.usage if endpoint.stream and endpoint.api != "generate" else None,
        "model": endpoint.model,
        "arrival": arrival_text(arrival),
        "requests": len(requests),
        "asked_tokens": requests[0].max_new_tokens if requests else 0,
        "wall_s": (level.end_ns - level.start_ns) * 1e-9,
        "figures": asdict(summarize(level)),
        "client": asdict(level.health),
        "differing": sum(compared) if compared else None,
        "first_error": next(
            (f"{r.error.kind}: {r.error.message}" for r in level.results if r.error), None
        ),
    }


def is_sound(found: dict[str, Any]) -> bool:
    """Return whether the figures are the server's: nothing failed, nothing differed, the client kept up."""
    return not (found["figures"]["errors"] or found["differing"] or found["client"]["client_bound"])


def text(found: dict[str, Any]) -> str:
    """Return an outcome as lines to print. Pure."""
    figures, client = found["figures"], found["client"]
    how = "stream" if found["stream"] else "no stream"
    rows: list[tuple[str, str]] = [
        ("requests", f"{found['requests']} of {found['asked_tokens']} output tokens, {figures['errors']} failed"),
        ("wall time", f"{found['wall_s']:.2f} s"),
        ("output", f"{figures['tok_s']:,.1f} tok/s"),
    ]  # fmt: skip
    if figures["steady_tok_s"] is not None:
        rows.append(("… while full", f"{figures['steady_tok_s']:,.1f} tok/s"))
    rows.append(("in flight on average", f"{figures['effective_concurrency']:.2f}"))
    if figures["accept_length"] is not None:
        rows.append(("accept length", f"{figures['accept_length']:.3f}"))
    for key, name in (
        ("latency_s", "request latency"), ("ttft_s", "time to first token"),
        ("tpot_s", "time per output token"), ("itl_s", "between tokens"),
    ):  # fmt: skip
        if figures[key]:
            told = "  ".join(f"{p} {v * 1e3:,.1f}" for p, v in figures[key].items())
            rows.append((f"{name}, ms", told))
    cached = figures["cached_tokens"]
    told = "unknown: the server does not say" if cached is None else f"{cached:,}"
    rows.append(("prompt tokens from cache", told))
    if found["usage"] in COUNTED:
        rows.append(("token counts", COUNTED[found["usage"]]))
    if found["differing"] is not None:
        rows.append(("outputs other than planted", str(found["differing"])))
    late = "after its time" if not found["arrival"].startswith("closed") else "after the end before"
    rows += [
        ("schedule delay", f"p99 {client['schedule_delay_p99_ms']:.2f} ms (sent {late})"),
        (
            "client",
            f"{client['cpu_share']:.1%} of a core, loop lag p99 {client['loop_lag_p99_ms']:.2f} ms,"
            f" longest GC pause {client['gc_pause_max_ms']:.2f} ms,"
            f" {client['workers']} process{'es' * (client['workers'] > 1)}",
        ),
    ]
    lines = [f"{found['arrival']}, {found['api']} ({how}) at {found['url']}"]
    lines += [f"  {name + ':':28} {value}" for name, value in rows]
    if found["first_error"]:
        kinds = ", ".join(f"{n} × {kind}" for kind, n in sorted(figures["error_kinds"].items()))
        lines.append(f"  FAILED: {kinds}; first: {found['first_error'][:300]}")
    if client["client_bound"]:
        lines.append(f"  INVALID: the client was the bottleneck: {client['bound_reason']}")
    return "\n".join(lines)


def to_json(found: dict[str, Any], level: LevelResult) -> bytes:
    """Return an outcome with every request: send, first token, each chunk, end, counts, error; times in nanoseconds."""
    rows = [result_to_json(r) for r in level.results]
    return orjson.dumps({**found, "results": rows}, option=orjson.OPT_INDENT_2) + b"\n"
