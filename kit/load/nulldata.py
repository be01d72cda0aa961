"""What the null server sends and counts. Pure; nothing here touches a socket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import orjson

Api = Literal["generate", "completions", "chat"]


@dataclass(frozen=True, slots=True)
class NullConfig:
    """How the null server behaves.

    Args:
        interval_ms: Between the events of a stream; 0 writes as fast as the client reads.
        ttft_ms: From the request to its first event.
        tokens_per_event: Of every event but the first, which has one, as after a prefill.
        incremental: ``/generate`` events hold only what is new (``--incremental-streaming-output``).
        lockstep: All streams send at the same moments, as a batch of a real engine does.
        cpu: Core to run on, -1 for any.
    """

    interval_ms: float = 20.0
    ttft_ms: float = 20.0
    tokens_per_event: int = 1
    incremental: bool = False
    lockstep: bool = False
    cpu: int = -1


@dataclass(slots=True)
class NullStats:
    """The server's own count since the last reset. Times are of the monotonic clock, in nanoseconds."""

    requests: int = 0
    completed: int = 0
    dropped: int = 0
    tokens: int = 0
    events: int = 0
    first_request_ns: int = 0
    last_end_ns: int = 0
    ttft_ns: int = 0
    latency_ns: int = 0
    cpu_s: float = 0.0

    @property
    def tok_s(self) -> float:
        """Output tokens a second, from the first request that arrived to the last end."""
        span = self.last_end_ns - self.first_request_ns
        return self.tokens / (span * 1e-9) if span > 0 else 0.0

    @property
    def mean_ttft_s(self) -> float:
        """From the arrival of a request to its first event, seconds; completed requests."""
        return self.ttft_ns * 1e-9 / self.completed if self.completed else 0.0


def steps_of(tokens: int, tokens_per_event: int) -> list[int]:
    """Return the output tokens after each event."""
    return [*range(1, tokens, tokens_per_event), tokens] if tokens > 0 else []


def output_ids(tokens: int) -> list[int]:
    """Return the token ids of every answer: plausible sizes, the same each time."""
    return [(7919 * (i + 1)) % 120_000 + 100 for i in range(tokens)]


def _meta(api: Api, prompt: int, done: int, total: int, verify: int | None) -> dict[str, Any]:
    if api != "generate":
        return {"prompt_tokens": prompt, "total_tokens": prompt + done, "completion_tokens": done}
    meta: dict[str, Any] = {
        "id": "00000000000000000000000000000000",
        "finish_reason": {"type": "length", "length": total} if done == total else None,
        "prompt_tokens": prompt,
        "weight_version": "default",
        "num_retractions": 0,
        "reasoning_tokens": 0,
        "completion_tokens": done,
        "cached_tokens": 0,
    }
    if verify is not None and done == total:
        meta["spec_verify_ct"] = verify
        meta["spec_accept_length"] = done / max(verify, 1)
    return meta


def render(
    config: NullConfig,
    api: Api,
    prompt: int,
    tokens: int,
    stream: bool,
    usage: tuple[bool, bool] = (True, True),
) -> list[bytes]:
    """Return the JSON of each event of a stream without [DONE], or the one whole answer. Pure.

    Args:
        config: How many tokens an event has.
        api: In which form.
        prompt: Prompt tokens to report.
        tokens: Output tokens.
        stream: A stream was asked for.
        usage: Of an OpenAI stream: a closing event with counts, and counts with every event.
    """
    closing, running = (usage[0], usage[0] and usage[1]) if stream else (False, True)
    steps = steps_of(tokens, config.tokens_per_event) if stream else [tokens]
    verify = None
    if config.tokens_per_event > 1:
        verify = max(1, len(steps_of(tokens, config.tokens_per_event)) - 1)
    ids, before, events = output_ids(tokens), 0, []
    for done in steps:
        new = " word" * (done - before)
        if api == "generate":
            first = before if config.incremental and stream else 0
            value: dict[str, Any] = {
                "text": new if config.incremental and stream else " word" * done,
                "output_ids": ids[first:done],
                "meta_info": _meta(api, prompt, done, tokens, verify),
            }
        else:
            reason = "length" if done == tokens else None
            choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": reason}
            if api == "completions":
                choice["text"] = new
            else:
                choice["delta" if stream else "message"] = {"role": "assistant", "content": new}
            kind = "text_completion" if api == "completions" else "chat.completion"
            value = {
                "id": "00000000000000000000000000000000",
                "object": f"{kind}.chunk" if stream and api == "chat" else kind,
                "created": 0,
                "model": "null",
                "choices": [choice],
            }
            if running:
                value["usage"] = _meta(api, prompt, done, tokens, verify)
        events.append(orjson.dumps(value))
        before = done
    if closing and api != "generate":
        counts = _meta(api, prompt, tokens, tokens, verify)
        events.append(
            orjson.dumps({"id": "0", "object": "", "model": "null", "choices": [], "usage": counts})
        )
    return events
