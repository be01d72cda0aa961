"""Which backend ``--backend auto`` takes, and why."""

from __future__ import annotations

import importlib.util

from kit.backends.base import Backend
from kit.backends.compose import ComposeBackend
from kit.backends.process import ProcessBackend
from kit.compose.launch import gpu_nodes, has_toolkit
from kit.errors import UserError
from kit.scenarios import Rig


def compose_fits(rig: Rig, backend: ComposeBackend) -> tuple[bool, str]:
    """Return whether the compose backend can serve ``rig`` here, and the reason in a few words.

    It can where an engine and Compose answer, the image is there, and a GPU that the rig needs reaches a container.
    """
    cpu = rig.server.cpu_plugin
    try:
        backend.prepare(cpu=cpu)
    except UserError as error:
        return False, error.sentence.rstrip(".")
    if not cpu and not has_toolkit(backend.client) and not gpu_nodes():
        backend.close()
        return False, "the engine has no NVIDIA runtime and this host no NVIDIA device nodes"
    return True, f"an engine answers and has the image {backend.image}"


def choose(rig: Rig, port: int) -> tuple[Backend, str]:
    """Return the backend for ``rig`` and why it was taken: compose where it fits, else this Python's own engine.

    Raises:
        UserError: neither can be used.
    """
    compose = ComposeBackend(port=port)
    fits, why = compose_fits(rig, compose)
    if fits:
        return compose, why
    if importlib.util.find_spec("sglang") is None:
        raise UserError(
            f"No backend can be used: {why}, and SGLang is not installed in this Python.",
            "Run `make setup` and use .venv/bin/kit, or `kit image build`.",
        )
    return ProcessBackend(port=port), f"compose not possible: {why}"
