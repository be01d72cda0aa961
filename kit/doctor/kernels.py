"""Checks that run code on the device: a kernel of each library, and an all-reduce between GPUs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import orjson

from kit.doctor.model import Check, Seen, blocker, ok, unavailable, warning
from kit.doctor.probes import Host, Job, Outcome, used_gpus

# Starting Python and CUDA takes seconds; a library that compiles its kernel first takes many.
KERNEL_TIMEOUT_S = {"torch": 60.0, "sgl_kernel": 60.0, "triton": 90.0, "flashinfer": 120.0}
NCCL_TIMEOUT_S = 60.0
PROBE = "kit.doctor.device_probe"
SETUP = "Run `make setup` and use .venv/bin/kit."


def _answer(outcome: Outcome) -> dict[str, Any] | None:
    """Return the probe's JSON object, its last line of output; None without one."""
    for line in reversed(outcome.output.splitlines()):
        if line.startswith("{"):
            try:
                found = orjson.loads(line)
            except ValueError:
                return None
            return found if isinstance(found, dict) else None
    return None


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no output"


def uses(job: Job, library: str) -> bool:
    """Return whether a server of the rig needs a library's kernels. Pure.

    torch and sgl_kernel are always used; the others by the backends that the rig chooses. Speculation's tree kernels
    are in sgl_kernel, and what a rig leaves to SGLang may be either of the others.
    """
    if library in ("torch", "sgl_kernel") or job.rig is None:
        return True
    chosen = [job.rig.server.args.get(name) for name in ("attention-backend", "sampling-backend")]
    return None in chosen or library in chosen


def _kernel(library: str) -> Callable[[Host, Job], Seen]:
    def look(host: Host, job: Job) -> Seen:
        if job.elsewhere:
            return unavailable("the server runs elsewhere")
        if job.backend == "compose":
            return unavailable(
                "the server's libraries are in its image",
                "To try them: run `kit doctor --backend process` in the image.",
            )
        if job.needs_gpu and not used_gpus(host, job):
            return unavailable(f"no GPU to run it on: {host.nvml_error}")
        device = "cuda" if used_gpus(host, job) else "cpu"
        if device == "cpu" and library != "torch":
            return unavailable("no GPU to run it on; on a CPU the kit's plug-in takes its place")
        timeout = KERNEL_TIMEOUT_S[library]
        outcome = host.run([sys.executable, "-m", PROBE, library, device], timeout, host.environ)
        return judge_kernel(library, timeout, outcome, needed=uses(job, library))

    return look


def judge_kernel(library: str, timeout_s: float, outcome: Outcome, *, needed: bool) -> Seen:
    """Return what the outcome of a kernel's probe means. Pure."""
    bad = blocker if needed else warning
    spare = "" if needed else " (this rig does not use it)"
    if outcome.code is None:
        return bad(
            f"{library} did not finish a kernel within {timeout_s:.0f} s{spare}",
            "Look for a hung GPU (`nvidia-smi`, `dmesg | grep -i xid`) and for a kernel that is still compiling.",
        )
    answer = _answer(outcome)
    if answer is None:
        return bad(
            f"{library}: the probe ended with exit code {outcome.code}: {_last_line(outcome.output)}{spare}",
            SETUP,
        )
    if answer.get("missing"):
        return bad(f"{library} is not installed in this Python: {answer['missing']}{spare}", SETUP)
    if "error" in answer:
        return bad(
            f"{library}'s kernel failed: {answer['error']}{spare}",
            'Use the kit\'s CUDA 13 lock or image; "no kernel image" means that the build holds no code for this GPU.',
        )
    text = f"{library} {answer['version']} computed {answer['what']} on {answer['device']} rightly"
    if not answer["right"]:
        return bad(
            f"{library} {answer['version']} computed {answer['what']} wrongly on {answer['device']}",
            "Its results cannot be trusted: reinstall it, then suspect the GPU's memory (gpu.ecc).",
        )
    return ok(text)


def _nccl(host: Host, job: Job) -> Seen:
    gpus = used_gpus(host, job)
    if job.elsewhere:
        return unavailable("the server runs elsewhere")
    if job.backend == "compose":
        return unavailable("the server's NCCL is in its image")
    if len(gpus) < 2:
        return unavailable("fewer than two GPUs are used")
    outcome = host.run(
        [sys.executable, "-m", PROBE, "nccl", str(len(gpus))], NCCL_TIMEOUT_S, host.environ
    )
    return judge_nccl(len(gpus), outcome)


def judge_nccl(gpus: int, outcome: Outcome) -> Seen:
    """Return what the outcome of the all-reduce means. Pure."""
    remedy = (
        "Try NCCL_P2P_DISABLE=1; if that works, boot with iommu=pt and turn ACS off in the BIOS "
        "(topology.iommu), else run with NCCL_DEBUG=INFO."
    )
    if outcome.code is None:
        return blocker(
            f"an all-reduce over {gpus} GPUs did not end within {NCCL_TIMEOUT_S:.0f} s", remedy
        )
    answer = _answer(outcome)
    if answer is None or "error" in answer:
        what = answer["error"] if answer else _last_line(outcome.output)
        return blocker(f"an all-reduce over {gpus} GPUs failed: {what}", remedy)
    if not answer["right"]:
        return blocker(f"an all-reduce over {gpus} GPUs gave a wrong sum", remedy)
    return ok(
        f"all-reduce over {gpus} GPUs: {answer['small_us']:.0f} µs for 32 KiB, "
        f"{answer['bus_gb_s']:.1f} GB/s on the bus for 64 MiB"
    )


CHECKS = (
    *(
        Check(
            f"kernels.{library}",
            "A library whose build holds no code for this device fails only when the server decodes.",
            _kernel(library),
            "https://github.com/sgl-project/sglang/issues/7249",
            once=True,
        )
        for library in KERNEL_TIMEOUT_S
    ),
    Check(
        "nccl.all-reduce",
        "On PCIe machines NCCL's first all-reduce can hang for ever, after minutes of loading weights.",
        _nccl,
        "https://github.com/NVIDIA/nccl/issues/1999",
        once=True,
    ),
)
