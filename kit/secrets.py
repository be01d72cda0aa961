"""Secrets of the environment never reach a file or a screen through the kit.

The kit passes the environment on to the server it starts and writes none of it down. A server, a library or an error
message may still print a token; so what the kit writes and shows goes through :func:`scrub`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

NAME = re.compile(r"token|secret|passw|api_?key|credential", re.I)
# Shorter values are switches ("TOKENIZERS_PARALLELISM=false"), and hiding them would garble text.
LEAST_LENGTH = 8
MASK = "***"
BLOCK = 1 << 20


def values(environ: Mapping[str, str] | None = None) -> list[str]:
    """Return the values of the environment that are secrets by their name, longest first.

    Paths are none: they say where a secret lies.
    """
    environ = os.environ if environ is None else environ
    found = {
        value.strip()
        for name, value in environ.items()
        if NAME.search(name) and len(value.strip()) >= LEAST_LENGTH and not value.startswith("/")
    }
    return sorted(found, key=len, reverse=True)


def scrub(text: str, environ: Mapping[str, str] | None = None) -> str:
    """Return ``text`` with every secret masked."""
    for value in values(environ):
        text = text.replace(value, MASK)
    return text


def scrub_bytes(data: bytes) -> bytes:
    """Like :func:`scrub` for bytes."""
    for value in values():
        secret = value.encode("utf-8", "surrogateescape")
        if secret in data:
            data = data.replace(secret, MASK.encode())
    return data


def scrub_file(path: Path) -> bool:
    """Mask secrets in a file that another process wrote, such as a server's log.

    Returns:
        Whether there was one.
    """
    secrets = [v.encode("utf-8", "surrogateescape") for v in values()]
    if not secrets or not _holds(path, secrets):
        return False
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with path.open("rb") as source, temporary.open("wb") as target:
            # Line by line: a secret has no newline in it.
            while line := source.readline(BLOCK):
                target.write(scrub_bytes(line))
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        return False
    return True


def _holds(path: Path, secrets: list[bytes]) -> bool:
    reach = max(map(len, secrets))
    try:
        with path.open("rb") as file:
            tail = b""
            while block := file.read(BLOCK):
                if any(secret in tail + block for secret in secrets):
                    return True
                tail = block[-reach:]
    except OSError:
        return False
    return False
