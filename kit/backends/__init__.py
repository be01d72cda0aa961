"""How a server is run: ``process`` (bare host), ``attach`` (somebody else's), ``compose`` (Docker).

All follow one protocol, :class:`kit.backends.base.Backend`: start → ready → logs → stop.
"""

from __future__ import annotations

from kit.backends.base import Backend, ServerHandle, wait_until_decoding

__all__ = ["Backend", "ServerHandle", "wait_until_decoding"]
