"""What the load client sends and what it brings back. Times are nanoseconds from the level's start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Api = Literal["generate", "completions", "chat"]
ErrorKind = Literal[
    "connect",
    "reset",
    "timeout",
    "http-status",
    "bad-json",
    "server-error",
    "truncated",
    "too-large",
]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go. ``model`` is sent to the OpenAI-compatible APIs only."""

    base_url: str
    api: Api = "generate"
    stream: bool = False
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One request: a prompt as token ids, text or chat messages, and the output tokens asked for."""

    index: int
    max_new_tokens: int
    prompt_ids: list[int] | None = None
    text: str | None = None
    messages: list[dict[str, str]] | None = None


@dataclass(frozen=True, slots=True)
class RequestError:
    """Why a request failed."""

    kind: ErrorKind
    message: str


@dataclass(slots=True)
class RequestResult:
    """One request as the client saw it.

    ``chunks`` holds (time, output tokens so far) of each streamed event that brought tokens; token counts are the
    server's, never counted chunks. ``spec_verify_ct`` is None when the server does not speculate.
    """

    index: int
    send_ns: int
    end_ns: int = 0
    first_ns: int | None = None
    chunks: list[tuple[int, int]] = field(default_factory=list)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    spec_verify_ct: int | None = None
    output_ids: list[int] | None = None
    text: str | None = None
    finish_reason: str | None = None
    error: RequestError | None = None


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """The client's measurement of itself during a level."""

    cpu_share: float
    loop_lag_p99_ms: float
    schedule_delay_p99_ms: float
    client_bound: bool
    bound_reason: str = ""


@dataclass(slots=True)
class LevelResult:
    """A level: its results by index, when it started (always 0) and ended, and how the client did."""

    results: list[RequestResult]
    start_ns: int
    end_ns: int
    health: ClientHealth


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """``concurrency`` requests in flight, each replaced at once when it ends."""

    concurrency: int


@dataclass(frozen=True, slots=True)
class LevelMetrics:
    """A level summed up. Times in seconds; percentiles by name (``p50``, ``p90``, ``p95``, ``p99``)."""

    tok_s: float
    steady_tok_s: float | None
    effective_concurrency: float
    accept_length: float | None
    latency_s: dict[str, float]
    ttft_s: dict[str, float]
    tpot_s: dict[str, float]
    itl_s: dict[str, float]
    cached_tokens: int
    errors: int
