"""The engine of a level: sends requests on schedule over kept connections, in one event loop.

There is no task a request: the end of an answer is a callback, and the next request goes out from within it,
before the answer is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from kit.errors import UserError
from kit.load.bodies import PATHS, request_body
from kit.load.clock import Alarm
from kit.load.connection import Connection
from kit.load.flight import Flight
from kit.load.health import Probe, Vitals
from kit.load.model import Endpoint, Request, RequestError, RequestResult
from kit.load.replies import reply_for

# A server may close a kept connection at any time (uvicorn after 5 s); an old one is not worth the risk.
IDLE_LIMIT_NS = 2_000_000_000
OnResult = Callable[[RequestResult], None]
NextIndex = Callable[[], int | None]


@dataclass(frozen=True, slots=True)
class Target:
    """Where to connect, and the bytes that begin every request."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    head: bytes


def target_of(endpoint: Endpoint) -> Target:
    """Take a base URL apart.

    Raises:
        UserError: not an http or https URL.
    """
    try:
        parts = urlsplit(endpoint.base_url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(
            f"{endpoint.base_url!r} is not the address of a server.",
            "Give it as http://127.0.0.1:30000.",
        )
    key = endpoint.api_key
    if key is not None and not (key.isascii() and key.isprintable()):
        raise UserError("The API key has characters that no header may hold.", "Check the key.")
    path = parts.path.rstrip("/")
    if endpoint.api != "generate":
        path = path.removesuffix("/v1")
    lines = [
        f"POST {path}{PATHS[endpoint.api]} HTTP/1.1",
        f"Host: {parts.netloc.rpartition('@')[2]}",
        "User-Agent: kit",
        f"Accept: {'text/event-stream' if endpoint.stream else 'application/json'}",
        "Content-Type: application/json",
    ]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    head = ("\r\n".join(lines) + "\r\nContent-Length: ").encode("latin-1")
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    return Target(parts.hostname, port or (443 if tls else 80), tls, head)


def payloads(endpoint: Endpoint, requests: Sequence[Request]) -> list[bytes]:
    """Return the bytes of each request, made before the clock starts.

    Raises:
        UserError: a prompt that the API cannot take, or a bad URL.
    """
    head = target_of(endpoint).head
    bodies = (request_body(endpoint, r) for r in requests)
    return [b"%b%d\r\n\r\n%b" % (head, len(body), body) for body in bodies]


def allow_connections(count: int) -> None:
    """Raise the limit on open files where ``count`` connections need it and the host allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit, soft), hard))


@contextlib.contextmanager
def quiet_collector() -> Iterator[None]:
    """Take what lives already out of the garbage collector's sight, so that its pauses stay short."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class Level:
    """One level while it runs.

    Args:
        endpoint: The server.
        requests: What to send; ``sends`` and ``next_index`` count in this order.
        timeout_s: Seconds that a request may take.
        on_result: Called as each request ends, after its replacement was sent.
        next_index: Closed loop: hands out what to send next, None when nothing is left.
        slots: Closed loop: requests in flight.
        sends: Open loop: nanosecond after the start of each request, in order.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        requests: Sequence[Request],
        timeout_s: float,
        on_result: OnResult,
        *,
        next_index: NextIndex | None = None,
        slots: int = 0,
        sends: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.results: list[RequestResult] = []
        self.vitals = Vitals()
        self._endpoint = endpoint
        self._target = target_of(endpoint)
        self._requests = requests
        self._payloads = payloads(endpoint, requests)
        self._timeout_s = timeout_s
        self._on_result = on_result
        self._next_index = next_index
        self._slots = slots
        self._sends = deque(sends)
        self._loop = asyncio.get_running_loop()
        self._zero = 0
        self._idle: list[Connection] = []
        self._flying: set[Flight] = set()
        self._timers: dict[Flight, asyncio.TimerHandle] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()
        self._broken: BaseException | None = None
        self._delays_ms: list[float] = []
        self._events = 0
        self._alarm: Alarm | None = None

    async def prepare(self) -> None:
        """Open the connections of a closed loop, so that connecting is not part of the first requests."""
        allow_connections(max(self._slots, len(self._sends)))
        made = await asyncio.gather(
            *(self._connect(min(self._timeout_s, 30)) for _ in range(self._slots)),
            return_exceptions=True,
        )
        # Where one fails the requests find out for themselves: the error belongs on their results.
        self._idle += [c for c in made if isinstance(c, Connection)]
        for connection in self._idle:
            connection.idle_since_ns = time.perf_counter_ns()

    async def run(self, zero_ns: int) -> None:
        """Send everything and return when the last request has ended.

        Args:
            zero_ns: When the level starts, on the monotonic clock; later than now.

        Raises:
            BaseException: whatever ``on_result`` raised; the requests in flight are dropped.
        """
        self._zero = zero_ns
        opening = asyncio.Event()
        start = Alarm(self._loop, opening.set)
        start.at(zero_ns)
        probe: Probe | None = None
        try:
            await opening.wait()
            probe = Probe(self._loop)
            self._open()
            await self._over.wait()
        finally:
            start.close()
            if self._alarm is not None:
                self._alarm.close()
            if probe is not None:
                self.vitals = probe.stop()
            self.vitals.delays_ms = self._delays_ms
            self.vitals.events = self._events
            self._drop_everything()
        if self._broken is not None:
            raise self._broken

    def _open(self) -> None:
        if self._next_index is None:
            self._alarm = Alarm(self._loop, self._send_due)
            self._send_due()
        else:
            for _ in range(self._slots):
                self._replace(None, None)
        self._check_over()

    def _send_due(self) -> None:
        """Open loop: send all that is due and set the alarm to the next."""
        while self._sends:
            planned, index = self._sends[0]
            now = time.perf_counter_ns() - self._zero
            if planned > now:
                assert self._alarm is not None
                self._alarm.at(self._zero + planned)
                return
            self._sends.popleft()
            flight = self._launch(index, None)
            flight.result.planned_ns = planned
            self._delays_ms.append((flight.result.send_ns - planned) * 1e-6)
        self._check_over()

    def _replace(self, connection: Connection | None, ended_ns: int | None) -> None:
        """Closed loop: send the next request in the place of one that ended."""
        assert self._next_index is not None
        index = self._next_index()
        if index is None:
            if connection is not None:
                self._idle.append(connection)
            return
        flight = self._launch(index, connection)
        if ended_ns is not None:
            self._delays_ms.append((flight.result.send_ns - ended_ns) * 1e-6)

    def _launch(self, index: int, connection: Connection | None) -> Flight:
        request = self._requests[index]
        connection = connection or self._take_idle()
        now = time.perf_counter_ns()
        result = RequestResult(index=request.index, send_ns=now - self._zero)
        reply = reply_for(self._endpoint, request, result, self._zero)
        flight = Flight(reply, self._endpoint.stream, self._zero, self._landed)
        self._flying.add(flight)
        self._timers[flight] = self._loop.call_later(self._timeout_s, self._late, flight)
        if connection is not None:
            flight.connection = connection
            connection.send(self._payloads[index], flight)
        else:
            task = self._loop.create_task(self._connect_and_send(flight, self._payloads[index]))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)
        return flight

    def _take_idle(self) -> Connection | None:
        oldest = time.perf_counter_ns() - IDLE_LIMIT_NS
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.idle_since_ns > oldest:
                return connection
            connection.abort()
        return None

    async def _connect(self, timeout_s: float) -> Connection:
        target = self._target
        async with asyncio.timeout(timeout_s):
            _, connection = await self._loop.create_connection(
                Connection, target.host, target.port, ssl=target.tls
            )
        return connection

    async def _connect_and_send(self, flight: Flight, payload: bytes) -> None:
        try:
            connection = await self._connect(self._timeout_s)
        except (OSError, TimeoutError) as error:
            flight.broke("connect", f"{type(error).__name__}: {error}", time.perf_counter_ns())
            return
        if flight.open:
            flight.connection = connection
            connection.send(payload, flight)
        else:
            connection.abort()

    def _late(self, flight: Flight) -> None:
        connection = flight.connection
        flight.broke(
            "timeout", f"no full answer within {self._timeout_s:g} s", time.perf_counter_ns()
        )
        if connection is not None:
            connection.abort()

    def _landed(self, flight: Flight, connection: Connection | None) -> None:
        """A request ended: first its replacement, then everything that can wait."""
        self._flying.discard(flight)
        self._timers.pop(flight).cancel()
        if self._next_index is not None:
            self._replace(connection, flight.result.end_ns)
        elif connection is not None:
            self._idle.append(connection)
        flight.complete()
        if self._broken is not None:
            return
        self._events += flight.reply.events
        self.results.append(flight.result)
        try:
            self._on_result(flight.result)
        except BaseException as error:  # noqa: BLE001  the caller's error ends the level and is raised by run()
            self._broken = error
            self._over.set()
        self._check_over()

    def _check_over(self) -> None:
        if not self._flying and not self._sends:
            self._over.set()

    def _drop_everything(self) -> None:
        for task in self._connecting:
            task.cancel()
        for flight in self._flying:
            flight.open = False
            self._timers[flight].cancel()
            if flight.connection is not None:
                flight.connection.abort()
        self._flying.clear()
        for connection in self._idle:
            connection.abort()
        self._idle.clear()


def failed_results(requests: Sequence[Request], seen: set[int], why: str) -> list[RequestResult]:
    """Return a result with an error for each request that has none: nothing is missing from a level."""
    return [
        RequestResult(index=r.index, send_ns=0, error=RequestError("reset", why))
        for r in requests
        if r.index not in seen
    ]
