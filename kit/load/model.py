"""What the load client sends and what it brings back.

Times are integer nanoseconds of the monotonic clock, counted from the moment a level's barrier opens.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, overload

from kit.errors import UserError

Api = Literal["generate", "completions", "chat"]
# The counts that an OpenAI-compatible stream is asked for: with every event, at its end, or none.
Usage = Literal["running", "final", "unasked"]
ErrorKind = Literal[
    "connect",  # no connection could be made
    "reset",  # the connection was reset, or closed before an answer began
    "timeout",  # no full answer in time
    "http-status",  # not 200; redirects are not followed
    "bad-http",  # not HTTP/1.1
    "bad-json",  # a body or an event that is not the JSON it should be
    "server-error",  # an error in a 200 answer, an error event, an aborted request
    "truncated",  # the answer ended too early
    "too-large",  # a header, a line or a body beyond the limits
    "token-count",  # the server's counts contradict each other or what was asked
]


class ChunkLog(Sequence[tuple[int, int]]):
    """(time, output tokens so far) of each event that brought tokens, 16 bytes each.

    A list of tuples would take ten times the memory and give the garbage collector something to walk through.
    """

    __slots__ = ("times", "tokens")

    def __init__(self, chunks: Iterable[tuple[int, int]] = ()) -> None:
        self.times = array("q")
        self.tokens = array("q")
        for at, so_far in chunks:
            self.add(at, so_far)

    def add(self, at_ns: int, so_far: int) -> None:
        """Append one chunk."""
        self.times.append(at_ns)
        self.tokens.append(so_far)

    def __len__(self) -> int:
        return len(self.times)

    @overload
    def __getitem__(self, at: int) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, at: slice) -> list[tuple[int, int]]: ...
    def __getitem__(self, at: int | slice) -> tuple[int, int] | list[tuple[int, int]]:
        if isinstance(at, slice):
            return list(zip(self.times[at], self.tokens[at], strict=True))
        return self.times[at], self.tokens[at]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self.times, self.tokens, strict=True))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ChunkLog({list(self)!r})"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go.

    Args:
        base_url: ``http://host:port`` or ``https://…``, with or without a path.
        api: ``generate`` is SGLang's own; the other two are OpenAI-compatible.
        stream: Ask for server-sent events.
        model: Sent to the OpenAI-compatible APIs only; ``default`` where it is None.
        api_key: Sent as a bearer token; never shown.
        usage: Counts that an OpenAI-compatible stream is asked for (``stream_options``). A level asks as it is
            told here and each request once; :func:`kit.drive.warm_up` finds out what a server accepts.
    """

    base_url: str
    api: Api = "generate"
    stream: bool = False
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    usage: Usage = "running"


@dataclass(frozen=True, slots=True)
class Request:
    """One request: a prompt as token ids, text or chat messages, and the output tokens asked for."""

    index: int
    max_new_tokens: int
    prompt_ids: list[int] | None = None
    text: str | None = None
    messages: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class RequestError:
    """Why a request failed; ``status`` is that of an ``http-status``."""

    kind: ErrorKind
    message: str
    status: int | None = None


@dataclass(slots=True)
class RequestResult:
    """One request as the client saw it.

    ``send_ns`` is taken before the request is written, and before connecting where a connection had to be made.
    ``first_ns`` and ``chunks`` are there for streams only. Token counts are the server's, never counted chunks;
    a server that gives no running count has one chunk, the last. ``spec_verify_ct`` is None where the server
    does not speculate. ``planned_ns`` is when an open loop meant to send. After an error the counts are those
    that had come by then.
    """

    index: int
    send_ns: int
    end_ns: int = 0
    first_ns: int | None = None
    chunks: Sequence[tuple[int, int]] = field(default_factory=ChunkLog)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    spec_verify_ct: int | None = None
    output_ids: list[int] | None = None
    text: str | None = None
    finish_reason: str | None = None
    error: RequestError | None = None
    planned_ns: int | None = None


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """The client's measurement of itself during a level.

    Attributes:
        cpu_share: CPU time ÷ wall time of the busiest client process, 1.0 = one core.
        loop_lag_p99_ms: How late the event loop came to a 5 ms tick, 99th percentile (worst process).
        schedule_delay_p99_ms: Closed loop: from the end of a request to the send of its replacement. Open loop:
            from the planned to the real send.
        client_bound: The client was (or may have been) the bottleneck: the level's numbers are not the server's.
        bound_reason: Why, empty if it was not.
        loop_lag_mean_ms: Mean of the same ticks.
        gc_pause_max_ms: Longest pause for Python's garbage collector.
        gc_pause_total_ms: All of them.
        events: Server-sent events read.
        cpu_us_per_event: CPU time of all client processes per event, None without a stream.
        workers: Client processes.
    """

    cpu_share: float
    loop_lag_p99_ms: float
    schedule_delay_p99_ms: float
    client_bound: bool
    bound_reason: str = ""
    loop_lag_mean_ms: float = 0.0
    gc_pause_max_ms: float = 0.0
    gc_pause_total_ms: float = 0.0
    events: int = 0
    cpu_us_per_event: float | None = None
    workers: int = 1


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """``concurrency`` requests in flight, each replaced at once when it ends."""

    concurrency: int

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise UserError(
                f"A concurrency of {self.concurrency} sends nothing.", "Give at least 1."
            )


def _check_rate(rate: float) -> None:
    if not (math.isfinite(rate) and rate > 0):
        raise UserError(
            f"A rate of {rate} requests a second cannot be sent.", "Give a number above 0."
        )


@dataclass(frozen=True, slots=True)
class Poisson:
    """Requests arrive as a Poisson process of ``rate`` a second, whatever the server does; fixed by ``seed``."""

    rate: float
    seed: int = 0

    def __post_init__(self) -> None:
        _check_rate(self.rate)


@dataclass(frozen=True, slots=True)
class ConstantRate:
    """One request every ``1/rate`` seconds, the first at once."""

    rate: float

    def __post_init__(self) -> None:
        _check_rate(self.rate)


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests are sent at these seconds after the start, one time a request, in order."""

    times: tuple[float, ...]

    def __post_init__(self) -> None:
        if any(not math.isfinite(t) or t < 0 for t in self.times):
            raise UserError("A trace has a time below 0 or not finite.", "Give seconds from 0.")
        if any(b < a for a, b in zip(self.times, self.times[1:], strict=False)):
            raise UserError("The times of a trace go backwards.", "Sort the trace by time.")


Arrival = ClosedLoop | Poisson | ConstantRate | Trace


@dataclass(slots=True)
class LevelResult:
    """A level: its results by index, first send and last end, and how the client did."""

    results: list[RequestResult]
    start_ns: int
    end_ns: int
    health: ClientHealth
    arrival: Arrival | None = None


@dataclass(frozen=True, slots=True)
class LevelMetrics:
    """A level summed up. Times in seconds; percentiles by name (``p50``, ``p90``, ``p95``, ``p99``).

    Attributes:
        tok_s: Output tokens of answered requests ÷ time from the first send to the last end.
        steady_tok_s: Output tokens a second while the closed loop was full, None for an open loop.
        effective_concurrency: Sum of latencies ÷ wall time.
        accept_length: Output tokens ÷ verify steps, None without speculation.
        latency_s: Send to end.
        ttft_s: Send to first token; streams only.
        tpot_s: Time per output token of a request after its first chunk.
        itl_s: Gap between tokens, each token counting once: a chunk of k tokens is k gaps of 1/k of its wait.
        cached_tokens: Prompt tokens that the server took from its cache, by the answers that tell; None where none
            does, which is not 0.
        errors: Requests that failed.
        steady_s: Length of the steady window in seconds.
        error_kinds: How many failed in which way.
    """

    tok_s: float
    steady_tok_s: float | None
    effective_concurrency: float
    accept_length: float | None
    latency_s: dict[str, float]
    ttft_s: dict[str, float]
    tpot_s: dict[str, float]
    itl_s: dict[str, float]
    cached_tokens: int | None
    errors: int
    steady_s: float | None = None
    error_kinds: dict[str, int] = field(default_factory=dict)
