"""The load client: a closed loop over SGLang's ``/generate``.

One shared keep-alive session, no tokenizer in the loop, bodies built before the clock starts, time stamps taken
before parsing.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import orjson
import uvloop

from kit.load.health import LagProbe, judge_client
from kit.load.model import (
    ClosedLoop,
    Endpoint,
    ErrorKind,
    LevelResult,
    Request,
    RequestError,
    RequestResult,
)

BODY_LIMIT = 64 << 20
LINE_LIMIT = 8 << 20
OnResult = Callable[[RequestResult], None]


class _FailedError(Exception):
    """A request failed in a way that has a name."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.error = RequestError(kind, message[:500])


def request_body(request: Request, stream: bool) -> bytes:
    """Return the JSON body for ``/generate``: greedy, exactly the asked number of tokens."""
    body: dict[str, Any] = {
        "sampling_params": {
            "temperature": 0,
            "max_new_tokens": request.max_new_tokens,
            "ignore_eos": True,
        },
        "stream": stream,
    }
    if request.prompt_ids is not None:
        body["input_ids"] = request.prompt_ids
    else:
        body["text"] = request.text
    return orjson.dumps(body)


def fill(result: RequestResult, reply: Any) -> None:
    """Copy what a ``/generate`` reply says into ``result``.

    Raises:
        _FailedError: the reply is an error, or has no token counts.
    """
    if not isinstance(reply, dict):
        raise _FailedError("bad-json", "the reply is not a JSON object")
    if "error" in reply:
        error = reply["error"]
        text = error.get("message", error) if isinstance(error, dict) else error
        raise _FailedError("server-error", str(text))
    meta = reply.get("meta_info")
    if not isinstance(meta, dict) or not isinstance(meta.get("completion_tokens"), int):
        raise _FailedError("bad-json", "the reply has no meta_info.completion_tokens")
    result.completion_tokens = meta["completion_tokens"]
    for field, key in (
        ("prompt_tokens", "prompt_tokens"),
        ("cached_tokens", "cached_tokens"),
        ("spec_verify_ct", "spec_verify_ct"),
    ):
        value = meta.get(key)
        setattr(result, field, value if isinstance(value, int) else None)
    reason = meta.get("finish_reason")
    if isinstance(reason, dict):
        result.finish_reason = str(reason.get("type"))
        if reason.get("type") == "abort":
            raise _FailedError("server-error", f"aborted: {reason.get('message', '')}")
    elif reason is not None:
        result.finish_reason = str(reason)
    ids = reply.get("output_ids")
    if isinstance(ids, list) and all(isinstance(i, int) for i in ids):
        result.output_ids = ids
    text = reply.get("text")
    result.text = text if isinstance(text, str) else None


class _Level:
    """One level while it runs."""

    def __init__(
        self, endpoint: Endpoint, requests: Sequence[Request], timeout_s: float, on_result: OnResult
    ) -> None:
        self.url = f"{endpoint.base_url.rstrip('/')}/generate"
        self.stream = endpoint.stream
        self.timeout_s = timeout_s
        self.on_result = on_result
        self.pending = [(r, request_body(r, endpoint.stream)) for r in reversed(requests)]
        self.results: list[RequestResult] = []
        self.zero = 0

    def now(self) -> int:
        return time.perf_counter_ns() - self.zero

    async def slot(self, session: aiohttp.ClientSession, start: asyncio.Event) -> None:
        """Send one request after another until none is left."""
        await start.wait()
        while self.pending:
            request, body = self.pending.pop()
            result = await self.one(session, request, body)
            self.results.append(result)
            self.on_result(result)

    async def one(
        self, session: aiohttp.ClientSession, request: Request, body: bytes
    ) -> RequestResult:
        """Send one request; whatever goes wrong is noted on its result."""
        result = RequestResult(index=request.index, send_ns=self.now())
        try:
            async with (
                asyncio.timeout(self.timeout_s),
                session.post(self.url, data=body, allow_redirects=False) as reply,
            ):
                if reply.status != 200:
                    start = (await reply.content.read(300)).decode("utf-8", "replace")
                    raise _FailedError("http-status", f"HTTP {reply.status}: {start}")
                if self.stream:
                    await self.read_stream(reply, result)
                else:
                    raw = await self.read_whole(reply)
                    result.end_ns = self.now()
                    try:
                        parsed = orjson.loads(raw)
                    except ValueError:
                        raise _FailedError("bad-json", "the reply is not JSON") from None
                    fill(result, parsed)
        except _FailedError as error:
            result.error = error.error
        except TimeoutError:
            result.error = RequestError("timeout", f"no full answer within {self.timeout_s:g} s")
        except aiohttp.ClientConnectorError as error:
            result.error = RequestError("connect", str(error)[:500])
        except aiohttp.ClientPayloadError as error:
            result.error = RequestError("truncated", str(error)[:500])
        except (aiohttp.ClientError, ConnectionError, OSError) as error:
            result.error = RequestError("reset", f"{type(error).__name__}: {error}"[:500])
        if not result.end_ns:
            result.end_ns = self.now()
        return result

    async def read_whole(self, reply: aiohttp.ClientResponse) -> bytes:
        """Return the body, at most :data:`BODY_LIMIT` bytes of it."""
        parts, size = [], 0
        async for part in reply.content.iter_any():
            size += len(part)
            if size > BODY_LIMIT:
                raise _FailedError("too-large", f"the reply is larger than {BODY_LIMIT} bytes")
            parts.append(part)
        return b"".join(parts)

    async def read_stream(self, reply: aiohttp.ClientResponse, result: RequestResult) -> None:
        """Read server-sent events; each holds the state so far."""
        buffer = bytearray()
        last: Any = None
        done = False
        async for part in reply.content.iter_any():
            at = self.now()
            buffer += part
            if len(buffer) > LINE_LIMIT:
                raise _FailedError("too-large", f"an event is larger than {LINE_LIMIT} bytes")
            while (end := buffer.find(b"\n")) >= 0:
                line = bytes(buffer[:end]).strip()
                del buffer[: end + 1]
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    done = True
                    continue
                try:
                    last = orjson.loads(data)
                except ValueError:
                    raise _FailedError("bad-json", "an event is not JSON") from None
                before = result.completion_tokens or 0
                fill(result, last)
                if (result.completion_tokens or 0) > before:
                    if result.first_ns is None:
                        result.first_ns = at
                    result.chunks.append((at, result.completion_tokens or 0))
        result.end_ns = self.now()
        if last is None or not done:
            raise _FailedError("truncated", "the stream ended without [DONE]")


async def _run(
    endpoint: Endpoint,
    requests: Sequence[Request],
    arrival: ClosedLoop,
    timeout_s: float,
    on_result: OnResult,
) -> LevelResult:
    level = _Level(endpoint, requests, timeout_s, on_result)
    start = asyncio.Event()
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    async with aiohttp.ClientSession(
        connector=connector,
        headers={"Content-Type": "application/json"},
        timeout=aiohttp.ClientTimeout(total=None),
        read_bufsize=1 << 20,
        trust_env=False,
        auto_decompress=False,
    ) as session:
        slots = [
            asyncio.create_task(level.slot(session, start))
            for _ in range(min(arrival.concurrency, len(requests)))
        ]
        # All slots wait at the barrier, so that the level starts at once and not as tasks come up.
        await asyncio.sleep(0)
        probe = LagProbe()
        before = resource.getrusage(resource.RUSAGE_SELF)
        level.zero = time.perf_counter_ns()
        watcher = asyncio.create_task(probe.watch())
        start.set()
        try:
            await asyncio.gather(*slots)
        finally:
            for task in (*slots, watcher):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher
        end = max((r.end_ns for r in level.results), default=0)
        after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    health = judge_client(cpu, end * 1e-9, probe.lags_ms)
    results = sorted(level.results, key=lambda r: r.index)
    return LevelResult(results=results, start_ns=0, end_ns=end, health=health)


def run_level(
    endpoint: Endpoint,
    requests: Sequence[Request],
    arrival: ClosedLoop,
    *,
    timeout_s: float,
    on_result: OnResult | None = None,
) -> LevelResult:
    """Send ``requests`` and return when all have ended.

    Args:
        endpoint: The server.
        requests: What to send, in this order.
        arrival: When requests are sent.
        timeout_s: Seconds a request may take.
        on_result: Called as each request ends.

    Raises:
        KeyboardInterrupt: as it came; results that ended before went to ``on_result``.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(
            _run(endpoint, requests, arrival, timeout_s, on_result or (lambda _: None))
        )
