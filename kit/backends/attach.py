"""Measure a server that somebody else runs. It is never started, never stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kit.backends.base import _listening, wait_until_decoding
from kit.errors import EngineError, UserError
from kit.scenarios import ServerCommand


class AttachedServer:
    """A server known by its URL only."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url.rstrip("/")
        self.log: Path | None = None

    def alive(self) -> bool:
        """Return True: whether it lives is only seen in its answers."""
        return True

    def why_dead(self) -> EngineError:
        """Return the error for a server that does not answer."""
        return EngineError(
            f"The server at {self.base_url} does not answer.",
            "Is it running, and is the URL right?",
        )

    def details(self) -> dict[str, Any]:
        """Return the URL."""
        return {"url": self.base_url}


class AttachBackend:
    """Serve nothing; use ``base_url``."""

    name = "attach"

    def __init__(self, base_url: str) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise UserError(
                f"{base_url!r} is not a URL.", "Give one such as http://127.0.0.1:30000."
            )
        self.base_url = base_url

    @contextlib.contextmanager
    def serve(
        self,
        command: ServerCommand,  # noqa: ARG002 - the protocol's, somebody else chose the command
        log: Path,  # noqa: ARG002
        timeout_s: float,
        waiting: Callable[[float], None] = lambda _: None,
    ) -> Iterator[AttachedServer]:
        """See :meth:`kit.backends.base.Backend.serve`."""
        server = AttachedServer(self.base_url)
        if not _listening(server.base_url):
            raise server.why_dead()
        wait_until_decoding(server, min(timeout_s, 120), waiting)
        yield server
