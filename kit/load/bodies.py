"""What each API is asked. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from kit.errors import UserError
from kit.load.model import Endpoint, Request, RequestResult, Usage

PATHS = {"generate": "/generate", "completions": "/v1/completions", "chat": "/v1/chat/completions"}
# Running counts: without them an event of several tokens cannot be told from one. ``continuous_usage_stats`` is an
# extension of SGLang and vLLM; ``stream_options`` itself is younger than the API, and strict servers refuse either.
STREAM_OPTIONS: dict[Usage, dict[str, bool] | None] = {
    "running": {"include_usage": True, "continuous_usage_stats": True},
    "final": {"include_usage": True},
    "unasked": None,
}
_LESS: dict[Usage, Usage | None] = {"running": "final", "final": "unasked", "unasked": None}
# What servers say to a field that they do not know: OpenAI's own 400, FastAPI's validation 422.
REFUSALS = (400, 422)


def asking_less(endpoint: Endpoint, results: Sequence[RequestResult]) -> Endpoint | None:
    """Return how to ask a server that refused every request; None where asking for fewer counts is no remedy.

    Args:
        endpoint: How it was asked.
        results: What came back.
    """
    less = _LESS[endpoint.usage]
    if endpoint.api == "generate" or not endpoint.stream or less is None or not results:
        return None
    if any(r.error is None or r.error.status not in REFUSALS for r in results):
        return None
    return replace(endpoint, usage=less)


def request_body(endpoint: Endpoint, request: Request) -> bytes:
    """Return the JSON body: greedy, exactly the asked number of output tokens.

    Raises:
        UserError: the API cannot take this kind of prompt.
    """
    if endpoint.api == "generate":
        body: dict[str, Any] = {
            "sampling_params": {
                "temperature": 0,
                "max_new_tokens": request.max_new_tokens,
                "ignore_eos": True,
            },
            "stream": endpoint.stream,
        }
        if request.prompt_ids is not None:
            body["input_ids"] = request.prompt_ids
        elif request.text is not None:
            body["text"] = request.text
        else:
            raise UserError(
                f"Request {request.index} has neither token ids nor text, which /generate needs.",
                "Use the chat API for messages.",
            )
        return orjson.dumps(body)
    body = {
        "model": endpoint.model or "default",
        "max_tokens": request.max_new_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": endpoint.stream,
    }
    options = STREAM_OPTIONS[endpoint.usage]
    if endpoint.stream and options is not None:
        body["stream_options"] = options
    if endpoint.api == "chat":
        if request.messages is not None:
            body["messages"] = request.messages
        elif request.text is not None:
            body["messages"] = [{"role": "user", "content": request.text}]
        else:
            raise UserError(
                f"Request {request.index} has token ids only, which the chat API does not take.",
                "Use the completions API.",
            )
    elif request.prompt_ids is not None or request.text is not None:
        body["prompt"] = request.text if request.prompt_ids is None else request.prompt_ids
    else:
        raise UserError(
            f"Request {request.index} has neither token ids nor text, which /v1/completions needs.",
            "Use the chat API for messages.",
        )
    return orjson.dumps(body)
