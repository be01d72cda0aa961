"""A server that decodes nothing and counts itself: what the load client is tested and measured against.

    python -m kit.load.nullserver --interval-ms 20 --ttft-ms 20

It answers ``/generate``, ``/v1/completions`` and ``/v1/chat/completions`` in the forms of SGLang 0.5.12.post1 with a
fixed output, event after event on schedule, and keeps count of tokens and times: ``GET /null/stats`` gives them,
``POST /null/reset`` sets them to zero. Events are rendered once and then only written, so that it stays ahead of
any client.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import heapq
import json
import os
import resource
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import IO, Any, cast

import httptools
import orjson
import uvloop

from kit.errors import EngineError
from kit.load.clock import Alarm
from kit.load.nulldata import Api, NullConfig, NullStats, render, steps_of

APIS: dict[bytes, Api] = {
    b"/generate": "generate",
    b"/v1/completions": "completions",
    b"/v1/chat/completions": "chat",
}
# Events due within one step of this grid are written together: fewer wake-ups, no visible delay.
GRID_NS = 250_000
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n"
_STREAM_HEAD = _HEAD % b"text/event-stream; charset=utf-8" + b"Transfer-Encoding: chunked\r\n\r\n"
_NOT_FOUND = (
    b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
)


def _chunk(event: bytes) -> bytes:
    body = b"data: " + event + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(body), body)


class _Stream:
    """One answer that is being sent."""

    __slots__ = ("at", "begun_ns", "connection", "first_ns", "packets", "step", "tokens")

    def __init__(
        self, connection: _Connection, packets: list[bytes], tokens: list[int], begun_ns: int
    ) -> None:
        self.connection = connection
        self.packets = packets
        self.tokens = tokens
        self.begun_ns = begun_ns
        self.first_ns = 0
        self.step = 0
        self.at = 0


class _Server:
    """All streams, the schedule and the counters."""

    def __init__(self, config: NullConfig, loop: asyncio.AbstractEventLoop) -> None:
        self.config = config
        self.stats = NullStats()
        self._loop = loop
        self._interval = round(config.interval_ms * 1e6)
        self._due: list[tuple[int, int, _Stream]] = []
        self._number = 0
        self._alarm = Alarm(loop, self._write_due)
        self._rendered: dict[tuple[Any, ...], tuple[list[bytes], list[int]]] = {}
        self._cpu = time.process_time()

    def packets(
        self, api: Api, prompt: int, tokens: int, stream: bool, usage: tuple[bool, bool]
    ) -> tuple[list[bytes], list[int]]:
        """Return the bytes of each step and the output tokens after it."""
        key = (api, prompt, tokens, stream, usage)
        if key not in self._rendered:
            events = render(self.config, api, prompt, tokens, stream, usage)
            if stream:
                steps = steps_of(tokens, self.config.tokens_per_event)
                made = [_chunk(e) for e in events[: len(steps)]]
                made[0] = _STREAM_HEAD + made[0]
                closing = b"".join(_chunk(e) for e in events[len(steps) :])
                made[-1] += closing + _chunk(b"[DONE]") + b"0\r\n\r\n"
            else:
                steps = [tokens]
                made = [_json_reply(events[0])]
            self._rendered[key] = (made, steps)
        return self._rendered[key]

    def begin(self, stream: _Stream, delay_ns: int) -> None:
        """Put a stream on the schedule."""
        self.stats.requests += 1
        if not self.stats.first_request_ns:
            self.stats.first_request_ns = stream.begun_ns
        stream.at = stream.begun_ns + delay_ns
        self.schedule(stream)

    def schedule(self, stream: _Stream) -> None:
        """Put the next step of a stream in the queue."""
        grid = self._interval if self.config.lockstep and self._interval else GRID_NS
        due = stream.at if self._interval == 0 else -(-stream.at // grid) * grid
        self._number += 1
        heapq.heappush(self._due, (due, self._number, stream))
        if self._due[0][2] is stream:
            self._alarm.at(due)

    def _write_due(self) -> None:
        now = time.perf_counter_ns()
        due, last = self._due, self._number
        while due and due[0][0] <= now and due[0][1] <= last:
            self.step(heapq.heappop(due)[2])
        if due:
            self._alarm.at(due[0][0])

    def step(self, stream: _Stream) -> None:
        """Write the next event of a stream and put the one after it on the schedule."""
        connection, stats = stream.connection, self.stats
        if connection.closed:
            return
        if connection.paused:
            connection.waiting = stream
            return
        at = stream.step
        connection.write(stream.packets[at])
        before = stream.tokens[at - 1] if at else 0
        stats.tokens += stream.tokens[at] - before
        stats.events += 1
        stream.step = at + 1
        if at == 0:
            stream.first_ns = time.perf_counter_ns()
        if stream.step < len(stream.packets):
            # On the stream's own schedule: a late event does not delay those after it.
            stream.at = stream.at + self._interval if self._interval else time.perf_counter_ns()
            self.schedule(stream)
            return
        now = time.perf_counter_ns()
        stats.completed += 1
        stats.last_end_ns = now
        stats.ttft_ns += stream.first_ns - stream.begun_ns
        stats.latency_ns += now - stream.begun_ns
        connection.stream = None

    def reset(self) -> None:
        """Set the counters to zero."""
        self.stats = NullStats()
        self._cpu = time.process_time()

    def report(self) -> bytes:
        """Return the counters as JSON."""
        self.stats.cpu_s = time.process_time() - self._cpu
        return orjson.dumps(asdict(self.stats))


def _json_reply(body: bytes) -> bytes:
    return _HEAD % b"application/json" + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


class _Connection(asyncio.Protocol):
    """One client connection."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._url = b""
        self._body: list[bytes] = []
        self._at = 0
        self.paused = False
        self.closed = False
        self.stream: _Stream | None = None
        self.waiting: _Stream | None = None

    def write(self, data: bytes) -> None:
        """Send bytes."""
        assert self._transport is not None
        self._transport.write(data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._at = time.perf_counter_ns()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, ValueError, KeyError):
            self.closed = True
            assert self._transport is not None
            self._transport.abort()

    def pause_writing(self) -> None:
        """Called by the event loop: the client does not read."""
        self.paused = True

    def resume_writing(self) -> None:
        """Called by the event loop."""
        self.paused = False
        stream, self.waiting = self.waiting, None
        if stream is not None:
            self._server.step(stream)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Called by the event loop."""
        self.closed = True
        if self.stream is not None:
            self._server.stats.dropped += 1

    def on_url(self, url: bytes) -> None:
        """Called by the parser."""
        self._url = url
        self._body.clear()

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        api = APIS.get(self._url)
        if api is None:
            self._other()
            return
        asked = orjson.loads(b"".join(self._body))
        config = self._server.config
        if api == "generate":
            tokens = asked.get("sampling_params", {}).get("max_new_tokens", 16)
            prompt = asked["input_ids"] if "input_ids" in asked else asked["text"].split()
        else:
            tokens = asked.get("max_tokens") or asked.get("max_completion_tokens") or 16
            prompt = asked["messages"] if api == "chat" else asked["prompt"]
            prompt = prompt.split() if isinstance(prompt, str) else prompt
        streams = bool(asked.get("stream"))
        options = asked.get("stream_options") or {}
        usage = (bool(options.get("include_usage")), bool(options.get("continuous_usage_stats")))
        packets, steps = self._server.packets(api, len(prompt), tokens, streams, usage)
        self.stream = _Stream(self, packets, steps, self._at)
        events = 1 if streams else len(steps_of(tokens, config.tokens_per_event))
        delay_ms = config.ttft_ms + (events - 1) * config.interval_ms
        self._server.begin(self.stream, round(delay_ms * 1e6))

    def _other(self) -> None:
        if self._url == b"/null/stats":
            self.write(_json_reply(self._server.report()))
        elif self._url == b"/null/reset":
            self._server.reset()
            self.write(_json_reply(b"{}"))
        elif self._url in (b"/health", b"/flush_cache"):
            self.write(_json_reply(b"{}"))
        elif self._url in (b"/server_info", b"/get_server_info"):
            self.write(_json_reply(b'{"internal_states": [{}]}'))
        elif self._url in (b"/v1/models", b"/get_model_info", b"/model_info"):
            models = [{"id": "null", "object": "model", "root": "null"}]
            answer = {"object": "list", "data": models, "model_path": "null"}
            self.write(_json_reply(orjson.dumps(answer)))
        else:
            self.write(_NOT_FOUND)


async def _serve(config: NullConfig, port: int) -> None:
    loop = asyncio.get_running_loop()
    server = _Server(config, loop)
    listener = await loop.create_server(
        lambda: _Connection(server), "127.0.0.1", port, backlog=4096
    )
    print(json.dumps({"port": listener.sockets[0].getsockname()[1]}), flush=True)
    # The parent holds the other end of standard input: when it is gone, so is this server.
    gone = asyncio.Event()

    def check() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            gone.set()

    loop.add_reader(sys.stdin.fileno(), check)
    await gone.wait()
    listener.close()


def main(argv: list[str] | None = None) -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m kit.load.nullserver")
    parser.add_argument("--port", type=int, default=0)
    for option in fields(NullConfig):
        flag = "--" + option.name.replace("_", "-")
        if isinstance(option.default, bool):
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, type=type(option.default), default=option.default)
    args = vars(parser.parse_args(argv))
    port = args.pop("port")
    config = NullConfig(**args)
    if config.cpu >= 0:
        os.sched_setaffinity(0, {config.cpu})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, port))


class NullServer:
    """The parent's side of a running null server."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def _call(self, path: str, data: bytes | None = None) -> dict[str, Any]:
        with self._opener.open(self.url + path, data=data, timeout=10) as reply:
            value = json.load(reply)
        assert isinstance(value, dict)
        return value

    def stats(self) -> NullStats:
        """Return the server's own count."""
        return NullStats(**self._call("/null/stats"))

    def reset(self) -> None:
        """Set its counters to zero."""
        self._call("/null/reset", b"")


@contextlib.contextmanager
def null_server(config: NullConfig) -> Iterator[NullServer]:
    """Run a null server in a process of its own.

    Raises:
        EngineError: it does not come up.
    """
    argv = [sys.executable, "-m", "kit.load.nullserver"]
    for name, value in asdict(config).items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            argv += [flag] * value
        else:
            argv += [flag, str(value)]
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    pipes = cast("tuple[IO[bytes], IO[bytes]]", (process.stdin, process.stdout))
    try:
        line = pipes[1].readline()
        if not line:
            raise EngineError("The null server did not start.", "Its error is printed above.")
        yield NullServer(process, json.loads(line)["port"])
    finally:
        process.kill()
        process.wait()
        for pipe in pipes:
            pipe.close()


if __name__ == "__main__":
    main()
