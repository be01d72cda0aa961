"""The protocol of backends, and readiness by decoding a token.

A server that answers its health endpoint can still die on its first decode (it happened with the first
version of the published patch), so ready means: a token came back.
"""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from kit.errors import EngineError

READ_LIMIT = 8 << 20
POLL_S = 0.25


class ServerHandle(Protocol):
    """A server that is up."""

    base_url: str
    log: Path | None

    def alive(self) -> bool:
        """Return whether the server still runs."""
        ...

    def why_dead(self) -> EngineError:
        """Return the error that explains a dead server, with the end of its log."""
        ...

    def details(self) -> dict[str, Any]:
        """Return what the run record keeps of this server (pid or container id)."""
        ...


class Backend(Protocol):
    """A way to run a server."""

    name: str

    def serve(
        self, command: Any, log: Path, timeout_s: float, waiting: Callable[[float], None]
    ) -> contextlib.AbstractContextManager[ServerHandle]:
        """Start a server, wait until it decodes, and stop it on leaving the context, whatever happens.

        Args:
            command: A :class:`kit.scenarios.ServerCommand`.
            log: Where the server's output goes.
            timeout_s: Seconds until giving up on readiness.
            waiting: Called about once a second with the seconds waited so far.

        Raises:
            EngineError: the server died or did not become ready in time.
        """
        ...


# Proxies of the environment must not come between the kit and a loopback server.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def http_json(url: str, body: dict[str, Any] | None = None, timeout_s: float = 10) -> Any:
    """Fetch JSON; POST when ``body`` is given.

    Raises:
        OSError: no connection, time-out, or an HTTP error.
        ValueError: not JSON, or larger than 8 MiB.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with _opener.open(request, timeout=timeout_s) as reply:
        raw = reply.read(READ_LIMIT + 1)
    if len(raw) > READ_LIMIT:
        raise ValueError(f"the answer of {url} is larger than {READ_LIMIT} bytes")
    return json.loads(raw)


def decodes(base_url: str, timeout_s: float = 60) -> bool:
    """Return whether the server decodes: two tokens, so that one comes from a decode step and not from prefill."""
    body = {
        "input_ids": [5, 6, 7],
        "sampling_params": {"temperature": 0, "max_new_tokens": 2, "ignore_eos": True},
    }
    try:
        reply = http_json(f"{base_url}/generate", body, timeout_s)
    except (OSError, ValueError):
        return False
    meta = reply.get("meta_info") if isinstance(reply, dict) else None
    return isinstance(meta, dict) and meta.get("completion_tokens") == 2


def _listening(base_url: str) -> bool:
    """Return whether the health endpoint answers; the process may still be unable to decode."""
    try:
        with _opener.open(f"{base_url}/health", timeout=2) as reply:
            return bool(reply.status == 200)
    except (OSError, ValueError):
        return False


def wait_until_decoding(
    handle: ServerHandle, timeout_s: float, waiting: Callable[[float], None]
) -> float:
    """Block until ``handle`` decodes a token.

    Returns:
        Seconds waited.

    Raises:
        EngineError: it died, or did not decode within ``timeout_s``.
    """
    start = time.monotonic()
    told = 0.0
    while True:
        waited = time.monotonic() - start
        if not handle.alive():
            raise handle.why_dead()
        left = timeout_s - waited
        if left <= 0:
            error = handle.why_dead()
            raise EngineError(
                f"The server did not decode a token within {timeout_s:.0f} s.",
                error.remedy
                or "Look at the end of its log; a slow machine may need a longer time-out.",
                error.log_tail,
            )
        if _listening(handle.base_url) and decodes(handle.base_url, min(left, 120)):
            return time.monotonic() - start
        if waited - told >= 1:
            told = waited
            waiting(waited)
        time.sleep(POLL_S)


@contextlib.contextmanager
def nothing_to_stop(handle: ServerHandle) -> Iterator[ServerHandle]:
    """Wrap a server that is not ours to stop."""
    yield handle
