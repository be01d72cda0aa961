"""A server that sends exactly the bytes it is told to, for faults that no real HTTP server would make."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

Action = bytes | float | Literal["reset", "close"]
Script = Callable[["Asked"], list[Action]]


@dataclass
class Asked:
    """One request as it arrived; ``number`` counts from 0 over all connections."""

    number: int
    line: str
    headers: dict[str, str]
    raw: bytes
    peer: int

    @property
    def body(self) -> dict[str, Any]:
        value = json.loads(self.raw)
        assert isinstance(value, dict)
        return value


@dataclass
class Scripted:
    url: str
    asked: list[Asked] = field(default_factory=list)
    flying: int = 0
    most_flying: int = 0


@contextmanager
def scripted(script: Script) -> Iterator[Scripted]:
    """Serve ``script`` on a loopback port: bytes are sent, floats are seconds to wait."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    server = Scripted(f"http://127.0.0.1:{listener.getsockname()[1]}")
    lock = threading.Lock()
    ending = threading.Event()
    open_sockets: set[socket.socket] = set()
    threads: list[threading.Thread] = []

    def read_request(sock: socket.socket, rest: bytes) -> tuple[bytes, bytes, bytes] | None:
        while b"\r\n\r\n" not in rest:
            piece = sock.recv(65536)
            if not piece:
                return None
            rest += piece
        head, _, rest = rest.partition(b"\r\n\r\n")
        lengths = [ln for ln in head.lower().split(b"\r\n") if ln.startswith(b"content-length:")]
        length = int(lengths[0].split(b":")[1])
        while len(rest) < length:
            rest += sock.recv(65536)
        return head, rest[:length], rest[length:]

    def talk(sock: socket.socket, peer: int) -> None:
        rest = b""
        try:
            while (found := read_request(sock, rest)) is not None:
                head, body, rest = found
                first, *lines = head.decode().split("\r\n")
                headers = {k.lower(): v.strip() for k, v in (ln.split(":", 1) for ln in lines)}
                with lock:
                    asked = Asked(len(server.asked), first, headers, body, peer)
                    server.asked.append(asked)
                    server.flying += 1
                    server.most_flying = max(server.most_flying, server.flying)
                actions = script(asked)
                for at, action in enumerate(actions):
                    if at == len(actions) - 1:
                        # Before the last bytes: the client may send the next request on having read them.
                        with lock:
                            server.flying -= 1
                    if isinstance(action, bytes):
                        sock.sendall(action)
                    elif isinstance(action, float):
                        if ending.wait(action):
                            return
                    else:
                        if action == "reset":
                            time.sleep(0.05)  # what was sent before must be read before
                            sock.setsockopt(
                                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                            )
                        sock.close()
                        return
        except OSError:
            pass
        finally:
            sock.close()
            with lock:
                open_sockets.discard(sock)

    def accept() -> None:
        while True:
            try:
                sock, address = listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with lock:
                open_sockets.add(sock)
            thread = threading.Thread(target=talk, args=(sock, address[1]))
            threads.append(thread)
            thread.start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield server
    finally:
        ending.set()
        # shutdown wakes an accept that close would not.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join(10)
        with lock:
            for sock in open_sockets:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(10)


def reply(value: Any, status: str = "200 OK", headers: str = "") -> bytes:
    """A whole JSON answer."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{headers}"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
STREAM_END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def meta(done: int, total: int, **changes: Any) -> dict[str, Any]:
    """SGLang's ``meta_info``."""
    base: dict[str, Any] = {
        "id": "x",
        "finish_reason": {"type": "length", "length": total} if done == total else None,
        "prompt_tokens": 2,
        "completion_tokens": done,
        "cached_tokens": 0,
    }
    return {**base, **changes}


def state(done: int, total: int, since: int = 0, **changes: Any) -> dict[str, Any]:
    """SGLang's ``/generate`` answer after ``done`` of ``total`` tokens, from token ``since`` on."""
    return {
        "text": "é" * (done - since),
        "output_ids": list(range(since, done)),
        "meta_info": meta(done, total, **changes),
    }


def event(value: Any) -> bytes:
    """One server-sent event; non-ASCII text stays as it is, so that it can be cut."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"
