"""Put the CPU kernels in SGLang's places. Imported only in a server process that asked for the CPU engine."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import torch

from kit.sglang_plugin import cache_kernels, sampling_kernels, tree_kernels
from kit.sglang_plugin.attention import backend_classes
from kit.sglang_plugin.cache_kernels import Launchable

SPEC = "sglang.srt.speculative"
MISSING = object()

# (module, name): replacement. Names absent from SGLang on a CPU (their import is behind `if is_cuda()`) are added.
KERNELS: dict[tuple[str, str], Any] = {
    (f"{SPEC}.spec_utils", "assign_req_to_token_pool"): Launchable(
        cache_kernels.assign_req_to_token_pool
    ),
    (f"{SPEC}.spec_utils", "assign_draft_cache_locs"): Launchable(
        cache_kernels.assign_draft_cache_locs
    ),
    (f"{SPEC}.spec_utils", "create_extend_after_decode_spec_info"): Launchable(
        cache_kernels.create_extend_after_decode_spec_info
    ),
    (f"{SPEC}.eagle_info_v2", "assign_draft_cache_locs_page_size_1"): Launchable(
        cache_kernels.assign_draft_cache_locs_page_size_1
    ),
    (f"{SPEC}.eagle_info_v2", "assign_extend_cache_locs"): Launchable(
        cache_kernels.assign_extend_cache_locs
    ),
    (f"{SPEC}.eagle_info_v2", "fill_bonus_tokens"): Launchable(cache_kernels.fill_bonus_tokens),
    (f"{SPEC}.eagle_info_v2", "fill_accepted_out_cache_loc"): Launchable(
        cache_kernels.fill_accepted_out_cache_loc
    ),
    (f"{SPEC}.eagle_info_v2", "assign_extend_cache_locs_func"): (
        cache_kernels.assign_extend_cache_locs_func
    ),
    (f"{SPEC}.eagle_utils", "sgl_build_tree_kernel_efficient"): (
        tree_kernels.build_tree_kernel_efficient
    ),
    (f"{SPEC}.eagle_utils", "verify_tree_greedy_func"): tree_kernels.verify_tree_greedy_func,
    **{
        (f"{SPEC}.{module}", name): getattr(sampling_kernels, name)
        for module in ("eagle_info", "eagle_info_v2")
        for name in (
            "top_k_renorm_prob",
            "top_p_renorm_prob",
            "tree_speculative_sampling_target_only",
        )
    },
    # Without this v1 verifies greedily whatever the temperature.
    (f"{SPEC}.eagle_info", "TREE_SPEC_KERNEL_AVAILABLE"): True,
}


def replace_everywhere(name: str, old: Any, new: Any) -> int:
    """Rebind ``name`` in every loaded SGLang module that holds ``old``; modules copy names on import."""
    count = 0
    for key, module in list(sys.modules.items()):
        ours = key.startswith("sglang.") and isinstance(module, ModuleType)
        if ours and module.__dict__.get(name, MISSING) is old:
            setattr(module, name, new)
            count += 1
    return count


def _kernels() -> list[str]:
    # Load all modules first, so that names copied between them are rebound too.
    for module in ("eagle_utils", "spec_utils", "eagle_info", "eagle_info_v2", "draft_utils"):
        importlib.import_module(f"{SPEC}.{module}")
    for module in ("eagle_worker", "eagle_worker_v2"):
        importlib.import_module(f"{SPEC}.{module}")
    for (module, name), new in KERNELS.items():
        home = importlib.import_module(module)
        old = home.__dict__.get(name, MISSING)
        setattr(home, name, new)
        if old is not MISSING and not isinstance(old, bool):
            replace_everywhere(name, old, new)
    return sorted({name for _, name in KERNELS})


def _attention() -> None:
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.speculative.draft_utils import DraftBackendFactory

    register_attention_backend("torch_native")(lambda runner: backend_classes()[0](runner))

    def decode(self: Any) -> Any:
        if self.speculative_num_steps == 1:
            return None
        steps = backend_classes()[1]
        return steps(self.draft_model_runner, self.topk, self.speculative_num_steps)

    DraftBackendFactory.create_decode_backend = decode
    DraftBackendFactory.create_draft_extend_backend = lambda self: backend_classes()[0](
        self.draft_model_runner
    )


def compute_position_torch(prefix: torch.Tensor, extend: torch.Tensor) -> tuple[Any, Any]:
    """Return the positions of the new tokens (packed) and where each request's begin.

    Like the original, which loops over requests, it goes as far as the shorter of the two: v1's draft extend passes
    more lengths than prefixes once a request has finished, and sets positions itself afterwards.
    """
    both = min(prefix.numel(), extend.numel())
    _, positions = cache_kernels.ragged(prefix[:both], prefix[:both] + extend[:both])
    return positions, extend.cumsum(0) - extend


def _memory_and_streams() -> None:
    from sglang.srt.mem_cache import memory_pool
    from sglang.srt.model_executor import forward_batch_info

    pool = memory_pool.MHATokenToKVPool
    # The warm-up compiles a Triton copy kernel; moves go through torch (SGLANG_NATIVE_MOVE_KV_CACHE).
    pool._init_kv_copy_and_warmup = lambda _: None
    old = forward_batch_info.compute_position_torch
    forward_batch_info.compute_position_torch = compute_position_torch
    replace_everywhere("compute_position_torch", old, compute_position_torch)
    # CPU tensors belong to no stream; LlamaForCausalLM.set_embed synchronises a GPU unconditionally.
    torch.Tensor.record_stream = lambda *_: None  # type: ignore[method-assign]
    if not torch.cuda.is_available():
        torch.cuda.synchronize = lambda *_: None


def install() -> None:
    """Replace everything and say so in the log, once a process."""
    names = _kernels()
    _attention()
    _memory_and_streams()
    # SGLang sets up logging after it loads plug-ins, so an INFO record would be lost here.
    print(
        f"kit cpu plug-in live: attention torch_native; {', '.join(names)}",
        file=sys.stderr,
        flush=True,
    )
