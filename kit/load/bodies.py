"""What each API is asked. Pure."""

from __future__ import annotations

from typing import Any

import orjson

from kit.errors import UserError
from kit.load.model import Endpoint, Request

PATHS = {"generate": "/generate", "completions": "/v1/completions", "chat": "/v1/chat/completions"}


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
    if endpoint.stream:
        # Running counts with every event: without them a chunk of several tokens cannot be told from one.
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
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
