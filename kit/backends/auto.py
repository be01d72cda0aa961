"""Which backend is used: what was asked for, or with ``auto`` what fits this host, and why."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from kit.backends.attach import AttachBackend
from kit.backends.base import Backend
from kit.backends.process import ProcessBackend
from kit.errors import UserError
from kit.scenarios import Rig

if TYPE_CHECKING:
    from kit.backends.compose import ComposeBackend

NAMES = ("auto", "process", "compose", "attach")
# An engine that hangs must not hold up a command that can do without it.
PATIENCE_S = 3.0


def compose_fits(rig: Rig, backend: ComposeBackend) -> tuple[bool, str]:
    """Return whether the compose backend can serve ``rig`` here, and the reason in a few words.

    It can where an engine and Compose answer, the image is there, and a GPU that the rig needs reaches a container.
    """
    from kit.backends import engine
    from kit.compose.launch import gpu_nodes, has_toolkit

    cpu = rig.server.cpu_plugin
    try:
        if backend.client is None:
            engine.connect(backend.host, PATIENCE_S).close()
        backend.prepare(cpu=cpu)
    except UserError as error:
        return False, error.sentence.rstrip(".")
    if not cpu and not has_toolkit(backend.client) and not gpu_nodes():
        backend.close()
        return False, "the engine has no NVIDIA runtime and this host no NVIDIA device nodes"
    revision = backend.image_facts["labels"].get("org.opencontainers.image.revision")
    built = f", built from {revision}" if revision else ""
    return True, f"an engine answers and has the image {backend.image}{built}"


def choose(rig: Rig, port: int) -> tuple[Backend, str]:
    """Return the backend for ``rig`` and why it was taken: compose where it fits, else this Python's own engine.

    Raises:
        UserError: neither can be used.
    """
    from kit.backends.compose import ComposeBackend

    compose = ComposeBackend(port=port)
    fits, why = compose_fits(rig, compose)
    if fits:
        return compose, why
    if importlib.util.find_spec("sglang") is None:
        raise UserError(
            f"No backend can be used: {why[:1].lower()}{why[1:]}, and SGLang is not installed in this Python.",
            "Run `make setup` and use .venv/bin/kit, or build the image with `kit image build`.",
        )
    return ProcessBackend(port=port), f"no container: {why[:1].lower()}{why[1:]}"


def backend_for(name: str, rig: Rig, port: int, url: str | None = None) -> tuple[Backend, str]:
    """Return the backend that was asked for and the reason to record.

    Args:
        name: One of :data:`NAMES`.
        rig: What will be served.
        port: Where servers listen, on loopback.
        url: A server that runs already; decides whatever the name is.

    Raises:
        UserError: the backend cannot be used here; the sentence says why.
    """
    if url:
        return AttachBackend(url), "a URL was given"
    if name == "attach":
        raise UserError("--backend attach needs a server.", "Name it with --url.")
    if name == "auto":
        return choose(rig, port)
    if name == "compose":
        from kit.backends.compose import ComposeBackend

        compose = ComposeBackend(port=port)
        compose.prepare(cpu=rig.server.cpu_plugin)
        return compose, "asked for"
    if importlib.util.find_spec("sglang") is None:
        raise UserError(
            "SGLang is not installed in this Python.",
            "Run `make setup` and use .venv/bin/kit, or choose --backend compose or attach.",
        )
    return ProcessBackend(port=port), "asked for"
