"""A container on a host without an image registry: an empty image that the host's own userland is mounted into.

Both sides of a comparison then run the same files.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from kit.compose.launch import gpu_nodes

SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt", "/etc", "/root")
KEPT = (
    *("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_HOME"),
    # Where compiled kernels lie: the container takes what the host has compiled.
    *("TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "TORCHINDUCTOR_CACHE_DIR"),
)


def userland(
    scenarios: Sequence[str], folders: Sequence[Path], path: Path, network: str, standins: str
) -> Path:
    """Write the compose file that turns an empty image into this host's userland. Returns its path."""
    shared = ["/tmp"]
    system = [m for m in SYSTEM if Path(m).exists()]
    rest = [str(f) for f in folders if not str(f).startswith(("/tmp/", *(f"{m}/" for m in system)))]
    volumes = [f"{m}:{m}:ro" for m in [*system, *dict.fromkeys(rest)]] + [
        f"{m}:{m}" for m in shared
    ]
    env = {name: os.environ[name] for name in KEPT if name in os.environ}
    # The backend leaves this host's path out; here it holds inside too.
    search = [p for p in (standins, env.get("PYTHONPATH", "")) if p]
    if search:
        env["PYTHONPATH"] = os.pathsep.join(search)
    service = "\n".join(
        [
            f"    entrypoint: {json.dumps([sys.executable])}",
            # The engine's packages for such hosts carry no docker-init, and their limits cannot be raised.
            "    init: false",
            "    ulimits: !reset null",
            "    secrets: !reset []",
            f"    devices: !override {json.dumps(gpu_nodes())}",
            f"    volumes: !override {json.dumps(volumes)}",
            f"    environment: {json.dumps({**env, 'HOME': '/tmp/kit-home'})}",
            *(["    network_mode: host", "    ports: !reset null"] if network == "host" else []),
        ]
    )
    text = "services:\n" + "".join(f"  {name}:\n{service}\n" for name in scenarios)
    path.write_text(text.replace("$", "$$"), encoding="utf-8")
    Path("/tmp/kit-home").mkdir(mode=0o777, exist_ok=True)
    return path
