"""The entry point of the images: set up the caches and the CPU engine, then become the command.

    python -m kit.container kit ARGS...            the kit's command line
    python -m kit.container -m sglang.launch_server ...     Python, as :class:`kit.scenarios.ServerCommand` has it

It loads nothing but the standard library, so that a container starts as fast as its command.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from kit.sglang_plugin import SWITCH, cpu_environment

IMAGE_FACTS = Path("/opt/kit/image.json")
# Where each compiler keeps what it compiled, below the cache folder.
CACHES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "SGLANG_DG_CACHE_DIR": "deep_gemm",
    "SGLANG_CACHE_DIR": "sglang",
    "TILELANG_CACHE_DIR": "tilelang",
    "TVM_FFI_CACHE_DIR": "tvm_ffi",
    "CUTE_DSL_CACHE_DIR": "cute_dsl",
    "CUDA_CACHE_PATH": "cuda",
    "XDG_CACHE_HOME": "xdg",
}


def cache_key(facts: Path = IMAGE_FACTS) -> str:
    """Return the image's cache key: the same for images with the same packages, patches and base."""
    try:
        return str(json.loads(facts.read_text(encoding="utf-8"))["cache_key"])
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"


def environment(environ: Mapping[str, str], key: str) -> dict[str, str]:
    """Return the command's environment.

    Args:
        environ: The container's; what is set there is kept.
        key: The image's cache key. A cache volume may outlive the image, and a kernel that other packages
            compiled must not be loaded, so each key has a folder of its own.
    """
    env = dict(environ)
    root = env.get("KIT_CACHE")
    if root:
        if not os.access(root, os.W_OK):
            # A read-only root file system, and no volume there: what is compiled lasts as long as the container.
            root = f"{tempfile.gettempdir()}/kit-cache"
        for name, folder in CACHES.items():
            env.setdefault(name, f"{root}/{key}/{folder}")
        if not os.access(env.get("HOME", "/"), os.W_OK):
            # A user that the image does not know (--user), or a read-only root; several libraries want a home.
            env["HOME"] = f"{root}/{key}/home"
    if env.get(SWITCH) == "1":
        for name, value in cpu_environment().items():
            env.setdefault(name, value)
    return env


def command(argv: Sequence[str], python: str) -> list[str]:
    """Return what to become. A word that is no Python option is a program: ``kit``, ``bash``."""
    if argv and argv[0] == "kit":
        return [python, "-m", "kit", *argv[1:]]
    if argv and not argv[0].startswith("-"):
        return list(argv)
    return [python, *argv]


def main() -> None:
    """Become the command."""
    env = environment(os.environ, cache_key())
    if "HOME" in env:
        Path(env["HOME"]).mkdir(parents=True, exist_ok=True)
    argv = command(sys.argv[1:], sys.executable)
    os.execvpe(argv[0], argv, env)


if __name__ == "__main__":
    main()
