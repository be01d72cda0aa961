"""What a job needs: memory, disk. Estimates from file sizes and the pair's shape."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kit.doctor.probes import Job
from kit.errors import UserError
from kit.planted import PairSpec
from kit.scenarios import PlantedPairConfig
from kit.units import GIB

# What CUDA's context, cuBLAS workspaces and captured graphs take beside weights.
GPU_OVERHEAD = 2 * GIB
# What Python with torch and SGLang's processes take on the host beside weights.
HOST_OVERHEAD = 3 * GIB


def pair_spec(job: Job) -> PairSpec | None:
    """Return the spec of the rig's planted pair, None for real weights or without a rig."""
    if job.rig is None or not isinstance(job.rig.pair, PlantedPairConfig):
        return None
    return PairSpec(**job.rig.pair.model_dump(exclude={"kind"}))


def file_bytes(folder: Path) -> int:
    """Return the bytes of the weights in a model folder; links are followed, as hub caches are made of them."""
    return sum(f.stat().st_size for f in folder.glob("*.safetensors") if f.is_file())


def weight_bytes(job: Job, environ: Mapping[str, str]) -> int | None:
    """Return the bytes of target and draft together; None if that is not known."""
    spec = pair_spec(job)
    if spec is not None:
        return spec.weight_bytes()
    try:
        models = job.models(environ)
    except UserError:
        return None
    total = file_bytes(Path(models.target)) + file_bytes(Path(models.draft))
    return total or None


def gpu_memory_needed(job: Job, environ: Mapping[str, str]) -> int | None:
    """Return the bytes that each GPU needs at least: its part of the weights and the overhead; None if not known."""
    weights = weight_bytes(job, environ)
    if weights is None or not job.needs_gpu:
        return None
    return weights // max(1, job.wanted_gpus) + GPU_OVERHEAD


def host_memory_needed(job: Job, environ: Mapping[str, str]) -> int | None:
    """Return the bytes of RAM that a server needs at least; None if not known.

    Weights on a GPU pass through the host file by file, so only a CPU rig holds all of them.
    """
    weights = weight_bytes(job, environ)
    if weights is None:
        return None
    return HOST_OVERHEAD + (0 if job.needs_gpu else weights)
