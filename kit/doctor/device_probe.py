"""Runs one kernel on the device and says on standard output, as JSON, whether its result was right.

    python -m kit.doctor.device_probe torch|sgl_kernel|triton|flashinfer cpu|cuda
    python -m kit.doctor.device_probe nccl GPUS

It runs in a process of its own: a kernel that fails can take CUDA, or the interpreter, with it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIZE = 256
DISTRIBUTIONS = {
    "torch": "torch",
    "sgl_kernel": "sglang-kernel",
    "triton": "triton",
    "flashinfer": "flashinfer-python",
}


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(DISTRIBUTIONS[library])
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(importlib.import_module(library), "__version__", "of unknown version"))


def _matrix(torch: Any, device: str) -> Any:
    made = torch.Generator().manual_seed(1)
    return torch.randn(SIZE, SIZE, generator=made).to(device)


def _torch(device: str) -> tuple[str, bool]:
    import torch

    a = _matrix(torch, device).to(torch.bfloat16)
    # The reference is the same product in float64 on the CPU.
    wanted = a.cpu().double() @ a.cpu().double()
    error = ((a @ a).cpu().double() - wanted).abs().max().item()
    # bfloat16 has 8 bits: an entry of a sum of 256 products of deviation 16 is rounded by up to 0.25.
    return "a bfloat16 matrix product", error < 0.5


def _rms_norm(torch: Any, norm: Callable[[Any, Any, float], Any], device: str) -> bool:
    x = _matrix(torch, device).to(torch.bfloat16)
    weight = torch.ones(SIZE, device=device, dtype=torch.bfloat16)
    wide = x.float()
    wanted = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    return bool((norm(x, weight, 1e-6).float() - wanted).abs().max().item() < 0.05)


def _sgl_kernel(device: str) -> tuple[str, bool]:
    import sgl_kernel
    import torch

    return "an RMS norm", _rms_norm(torch, sgl_kernel.rmsnorm, device)


def _flashinfer(device: str) -> tuple[str, bool]:
    flashinfer = importlib.import_module("flashinfer")
    torch: Any = importlib.import_module("torch")
    return "an RMS norm", _rms_norm(torch, flashinfer.norm.rmsnorm, device)


def _triton(device: str) -> tuple[str, bool]:
    import torch

    from kit.doctor.triton_probe import add

    x = _matrix(torch, device)
    out = torch.zeros_like(x)
    add[(x.numel() // 1024,)](x, x, out, x.numel(), BLOCK=1024)
    return "a sum", bool(torch.equal(out, x + x))


PROBES: dict[str, Callable[[str], tuple[str, bool]]] = {
    "torch": _torch,
    "sgl_kernel": _sgl_kernel,
    "triton": _triton,
    "flashinfer": _flashinfer,
}


def probe(library: str, device: str) -> dict[str, Any]:
    """Run one library's kernel.

    Returns:
        ``missing`` with the reason if it cannot be imported, ``error`` if it failed, else ``version``, ``what`` was
        computed, ``device`` and whether it was ``right``.
    """
    try:
        importlib.import_module(library)
    except ImportError as error:
        return {"missing": str(error).split("\n")[0]}
    try:
        what, right = PROBES[library](device)
        name = device
        if device == "cuda":
            torch: Any = importlib.import_module("torch")
            torch.cuda.synchronize()
            name = torch.cuda.get_device_name(0)
        return {"version": _version(library), "what": what, "device": name, "right": right}
    except Exception as error:  # noqa: BLE001 - whatever a kernel raises is the answer
        text = str(error).strip().split("\n")[0]
        return {"error": f"{type(error).__name__}: {text}"[:300]}


def _time(torch: Any, dist: Any, numbers: int, rounds: int) -> float:
    """Return seconds per all-reduce of ``numbers`` bfloat16 values."""
    data = torch.ones(numbers, device="cuda", dtype=torch.bfloat16)
    for _ in range(3):
        dist.all_reduce(data)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(rounds):
        dist.all_reduce(data)
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / rounds


def rank_main(rank: int, gpus: int, store: str, answer: str) -> None:
    """Be one rank of the all-reduce; rank 0 writes the answer."""
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=gpus)
    value = torch.full((1024,), float(rank + 1), device="cuda")
    dist.all_reduce(value)
    right = bool((value == gpus * (gpus + 1) / 2).all().item())
    small = _time(torch, dist, 16 << 10, 50)
    large = _time(torch, dist, 32 << 20, 5)
    if rank == 0:
        # Bus bandwidth as nccl-tests define it: what the slowest link carries.
        bus = 2 * (gpus - 1) / gpus * (64 << 20) / large / 1e9
        found = {"right": right, "small_us": small * 1e6, "bus_gb_s": bus}
        Path(answer).write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


def nccl(gpus: int) -> dict[str, Any]:
    """Run an all-reduce over the first GPUs; returns ``error``, or ``right``, ``small_us`` and ``bus_gb_s``."""
    try:
        multiprocessing: Any = importlib.import_module("torch.multiprocessing")
        with tempfile.TemporaryDirectory() as folder:
            answer = Path(folder) / "answer.json"
            multiprocessing.spawn(
                rank_main, (gpus, f"{folder}/store", str(answer)), nprocs=gpus, join=True
            )
            found: dict[str, Any] = json.loads(answer.read_text("utf-8"))
            return found
    except Exception as error:  # noqa: BLE001 - whatever NCCL raises is the answer
        lines = [line for line in str(error).splitlines() if line.strip()]
        return {"error": f"{type(error).__name__}: {lines[-1] if lines else ''}"[:300]}


def main(argv: list[str]) -> int:
    """Run the probe that the arguments name; returns 0, since a failed kernel is an answer too."""
    found = nccl(int(argv[1])) if argv[0] == "nccl" else probe(argv[0], argv[1])
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
