"""Put the CPU kernels in SGLang's places. Imported only in a server process that asked for the CPU engine.

Functions and methods go through SGLang's ``HookRegistry``. It can wrap what exists and can be called, so two kinds of
names are bound directly: Triton kernels, which are launched as ``kernel[grid](...)``, and names that SGLang imports
on GPUs only.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kit.sglang_plugin import cache_kernels, sampling_kernels, tree_kernels
from kit.sglang_plugin.attention import backend_classes
from kit.sglang_plugin.cache_kernels import Launchable

SPEC = "sglang.srt.speculative"
MISSING = object()

# module: names of Triton kernels that get a torch version of the same name.
TRITON_KERNELS = {
    "spec_utils": (
        "assign_req_to_token_pool",
        "assign_draft_cache_locs",
        "create_extend_after_decode_spec_info",
    ),
    "eagle_info_v2": (
        "assign_draft_cache_locs_page_size_1",
        "assign_extend_cache_locs",
        "fill_bonus_tokens",
        "fill_accepted_out_cache_loc",
    ),
}
SAMPLING = ("top_k_renorm_prob", "top_p_renorm_prob", "tree_speculative_sampling_target_only")
# (module, name): what SGLang defines only where it sees a GPU.
GPU_ONLY: dict[tuple[str, str], Any] = {
    ("eagle_utils", "sgl_build_tree_kernel_efficient"): tree_kernels.build_tree_kernel_efficient,
    **{
        (module, name): getattr(sampling_kernels, name)
        for module in ("eagle_info", "eagle_info_v2")
        for name in SAMPLING
    },
    # Without this v1 verifies greedily whatever the temperature.
    ("eagle_info", "TREE_SPEC_KERNEL_AVAILABLE"): True,
}


def rebind(name: str, old: Any, new: Any) -> int:
    """Rebind ``name`` in every loaded SGLang module that holds ``old``; modules copy names on import."""
    count = 0
    for key, module in list(sys.modules.items()):
        ours = key.startswith("sglang.") and isinstance(module, ModuleType)
        if ours and module.__dict__.get(name, MISSING) is old:
            setattr(module, name, new)
            count += 1
    return count


def _bind_kernels() -> list[str]:
    # Load all modules first, so that names copied between them are rebound too.
    for module in ("eagle_utils", "draft_utils", "eagle_worker", "eagle_worker_v2"):
        importlib.import_module(f"{SPEC}.{module}")
    for module, names in TRITON_KERNELS.items():
        home = importlib.import_module(f"{SPEC}.{module}")
        for name in names:
            # A name that is gone means another SGLang: fail here, not at the first request.
            rebind(name, getattr(home, name), Launchable(getattr(cache_kernels, name)))
    for (module, name), new in GPU_ONLY.items():
        setattr(importlib.import_module(f"{SPEC}.{module}"), name, new)
    return sorted(
        {n for names in TRITON_KERNELS.values() for n in names} | {n for _, n in GPU_ONLY}
    )


def _create_decode_backend(factory: Any) -> Any:
    """Return the backends of the draft steps, None where there is one step only."""
    if factory.speculative_num_steps == 1:
        return None
    steps = backend_classes()[1]
    return steps(factory.draft_model_runner, factory.topk, factory.speculative_num_steps)


def _create_draft_extend_backend(factory: Any) -> Any:
    """Return the backend of the draft's extend step."""
    return backend_classes()[0](factory.draft_model_runner)


def compute_position_torch(prefix: torch.Tensor, extend: torch.Tensor) -> tuple[Any, Any]:
    """Return the positions of the new tokens (packed) and where each request's begin.

    Like the original, which loops over requests, it goes as far as the shorter of the two: v1's draft extend passes
    more lengths than prefixes once a request has finished, and sets positions itself afterwards.
    """
    both = min(prefix.numel(), extend.numel())
    _, positions = cache_kernels.ragged(prefix[:both], prefix[:both] + extend[:both])
    return positions, extend.cumsum(0) - extend


def _fork(_result: None, _server_args: Any) -> None:
    """Let the server's processes be forked from its first one, which has imported everything they need.

    SGLang spawns them, because a CUDA context does not survive a fork; there is none here. Each spawned process would
    import SGLang once more, ten seconds of a CPU. Nothing has started a thread by then; should anything have, a fork
    would not be safe, and SGLang's own way stays.
    """
    if len(list(Path("/proc/self/task").iterdir())) == 1:
        multiprocessing.set_start_method("fork", force=True)


def _announce_worker(_result: None, scheduler: Any, *_: Any, **__: Any) -> None:
    """Say in the scheduler's process which worker runs and with which attention."""
    runner = scheduler.tp_worker.model_runner
    announce(
        f"scheduler {os.getpid()} runs {type(scheduler.model_worker).__name__} "
        f"with {type(runner.attn_backend).__name__}"
    )


def hooks() -> dict[str, tuple[Callable[..., Any], str]]:
    """Return hook and kind by the full name of what is hooked."""
    return {
        f"{SPEC}.eagle_utils.verify_tree_greedy_func": (
            tree_kernels.verify_tree_greedy_func,
            "REPLACE",
        ),
        f"{SPEC}.eagle_info_v2.assign_extend_cache_locs_func": (
            cache_kernels.assign_extend_cache_locs_func,
            "REPLACE",
        ),
        f"{SPEC}.draft_utils.DraftBackendFactory.create_decode_backend": (
            _create_decode_backend,
            "REPLACE",
        ),
        f"{SPEC}.draft_utils.DraftBackendFactory.create_draft_extend_backend": (
            _create_draft_extend_backend,
            "REPLACE",
        ),
        "sglang.srt.model_executor.forward_batch_info.compute_position_torch": (
            compute_position_torch,
            "REPLACE",
        ),
        # The warm-up compiles a Triton copy kernel; moves go through torch (SGLANG_NATIVE_MOVE_KV_CACHE).
        "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool._init_kv_copy_and_warmup": (
            lambda _: None,
            "REPLACE",
        ),
        "sglang.srt.entrypoints.engine._set_envs_and_config": (_fork, "AFTER"),
        "sglang.srt.managers.scheduler.Scheduler.init_model_worker": (_announce_worker, "AFTER"),
    }


def _apply_hooks() -> list[str]:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    wanted = hooks()
    for target, (hook, kind) in wanted.items():
        HookRegistry.register(target, hook, HookType[kind])
    HookRegistry.apply_hooks()
    # The registry logs what it could not apply and goes on.
    left = sorted(wanted.keys() - HookRegistry._patched)
    if left:
        raise RuntimeError(f"SGLang has no {', '.join(left)}")
    return sorted(target.rpartition(".")[2] for target in wanted)


def _attention_and_streams() -> None:
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    register_attention_backend("torch_native")(lambda runner: backend_classes()[0](runner))
    # CPU tensors belong to no stream; LlamaForCausalLM.set_embed synchronises a GPU unconditionally.
    torch.Tensor.record_stream = lambda *_: None  # type: ignore[method-assign]
    if not torch.cuda.is_available():
        torch.cuda.synchronize = lambda *_: None


def announce(what: str) -> None:
    """Write a line that the kit looks for in the server's log.

    SGLang sets up logging after it loads plug-ins, so an INFO record would be lost here.
    """
    print(f"kit cpu plug-in live: {what}", file=sys.stderr, flush=True)


def install() -> None:
    """Replace everything and say so in the log.

    Raises:
        Exception: something to be replaced is not there; the process must not serve.
    """
    names = _bind_kernels()
    hooked = _apply_hooks()
    _attention_and_streams()
    announce(f"attention torch_native; kernels {', '.join(names)}; hooks {', '.join(hooked)}")
