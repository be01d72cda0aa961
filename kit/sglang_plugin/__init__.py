"""The CPU plug-in: EAGLE's v1 and v2 workers of SGLang 0.5.12.post1 on a CPU, without editing SGLang.

SGLang calls :func:`register` in each of its processes through the entry point group ``sglang.srt.plugins``. It does
nothing unless the CPU engine was asked for, so a GPU host is never touched.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

SUPPORTED = "0.5.12.post1"
SWITCH = "SGLANG_USE_CPU_ENGINE"
STANDINS = Path(__file__).parent / "standins"


def cpu_server_args(given: Sequence[str] = ()) -> list[str]:
    """Return the server flags that the CPU engine needs, beside the ones ``given`` already."""
    # SGLang's own fraction is what a GPU's activations and graphs leave free of the NUMA node's memory. Under 8 GB that
    # is less than nothing, and a virtual machine whose memory grows with its use shows no more at first.
    memory = [] if "--mem-fraction-static" in given else ["--mem-fraction-static", "0.5"]
    return [
        *memory,
        *("--device", "cpu"),
        *("--attention-backend", "torch_native"),
        *("--sampling-backend", "pytorch"),
        *("--grammar-backend", "none"),
        "--disable-cuda-graph",
        "--disable-piecewise-cuda-graph",
        "--skip-server-warmup",
        # An idle server would otherwise spin a core.
        "--sleep-on-idle",
    ]


def missing_packages() -> list[str]:
    """Return the packages that have a stand-in here and are not installed."""
    return [
        path.name
        for path in sorted(STANDINS.iterdir())
        if path.is_dir()
        and not path.name.startswith("_")
        and importlib.util.find_spec(path.name) is None
    ]


def cpu_environment() -> dict[str, str]:
    """Return the environment that the CPU engine needs, beside the host's own."""
    env = {
        SWITCH: "1",
        # Several speculative functions are wrapped in torch.compile, which would call a C++ compiler.
        "TORCHDYNAMO_DISABLE": "1",
        # With more threads than idle cores one step goes from milliseconds to half a second.
        "OMP_NUM_THREADS": "1",
        "SGLANG_NATIVE_MOVE_KV_CACHE": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    missing = missing_packages()
    if missing:
        # They must be importable in spawned children before any plug-in loads, hence a path and not a hook.
        paths = [STANDINS / "_lib", *(STANDINS / name for name in missing)]
        env["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    return env


def register() -> None:
    """Install the CPU kernels if this process serves on the CPU.

    Raises:
        SystemExit: the CPU engine was asked for, and SGLang is another version or lacks what is to be replaced.
            SGLang logs and swallows exceptions of plug-ins; a server with half the kernels must not start.
    """
    if os.environ.get(SWITCH) != "1":
        return
    try:
        found = version("sglang")
    except PackageNotFoundError:
        found = "unknown"
    if found != SUPPORTED:
        raise SystemExit(
            f"kit: the CPU plug-in is for SGLang {SUPPORTED} and not for {found}; "
            "install the kit's lock with `make setup`."
        )
    try:
        from kit.sglang_plugin.install import install

        install()
    except Exception as error:
        raise SystemExit(
            f"kit: the CPU plug-in could not be put in place ({type(error).__name__}: {error}); "
            "is this SGLang's code as released? `make setup` installs it anew."
        ) from error
