"""Checks of the patched modules themselves, with the machine faked. Run by test_patched_modules.py in a child process.

They import SGLang, so they need the CPU engine's environment, which this test session does not have.
"""

# ruff: noqa: N801, N802 - the faked driver has CUDA's names
from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt import server_args as server_args_module
from sglang.srt.distributed.device_communicators import torch_symm_mem
from sglang.srt.layers import communicator, flashinfer_comm_fusion
from sglang.srt.layers.attention import triton_backend
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative import eagle_worker_v2, plain_decode

# -- 0002: query offsets of v1's captured draft-extend step ------------------------------------

STEPS = 3


class Kernel:
    """Stands for a Triton kernel whose result is not looked at."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args: None


def replayed_offsets(
    accepted: list[int], fix: bool, mode: ForwardMode = ForwardMode.DRAFT_EXTEND, padded: int = 0
) -> list[int]:
    """Return the query offsets after a replay for requests that accepted so many tokens."""
    bs = len(accepted) + padded
    backend = object.__new__(triton_backend.TritonAttnBackend)
    backend.speculative_num_steps = STEPS
    backend.device = "cpu"
    # What an earlier, larger batch left there.
    backend.qo_indptr = torch.full((bs + 9,), 77, dtype=torch.int32)
    backend.kv_indptr = torch.zeros(bs + 9, dtype=torch.int32)
    backend.cuda_graph_kv_indices = torch.zeros(64, dtype=torch.int64)
    backend.req_to_token = torch.zeros((bs, 8), dtype=torch.int32)
    lens = torch.tensor([*accepted, *[STEPS + 1] * padded], dtype=torch.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_backend, "create_flashinfer_kv_indices_triton", Kernel())
        patch.setattr(triton_backend, "_V1_DRAFT_EXTEND_FIX", fix)
        backend.init_forward_metadata_replay_cuda_graph(
            bs=bs,
            req_pool_indices=torch.arange(bs),
            seq_lens=torch.full((bs,), 9),
            seq_lens_sum=9 * bs,
            encoder_lens=None,
            forward_mode=mode,
            spec_info=SimpleNamespace(num_accept_tokens=lens),
            seq_lens_cpu=None,
        )
    offsets: list[int] = backend.qo_indptr.tolist()
    assert offsets[bs + 1 :] == [77] * 8
    return offsets[: bs + 1]


@given(st.lists(st.integers(1, STEPS + 1), min_size=1, max_size=40), st.integers(0, 5))
@settings(max_examples=60)
def test_with_the_fix_each_request_owns_exactly_its_accepted_tokens(
    accepted: list[int], padded: int
) -> None:
    offsets = replayed_offsets(accepted, True, padded=padded)
    assert offsets[0] == 0
    lens = [b - a for a, b in pairwise(offsets)]
    assert lens == [*accepted, *[STEPS + 1] * padded]
    # Never beyond what the graph was captured for.
    assert offsets[-1] <= (STEPS + 1) * (len(accepted) + padded)


def test_as_released_the_offsets_are_an_even_grid_whatever_was_accepted() -> None:
    assert replayed_offsets([1, 4, 2], False) == [0, 4, 8, 12]
    assert replayed_offsets([1, 4, 2], True) == [0, 1, 5, 7]


def test_the_v2_worker_pads_and_keeps_the_grid() -> None:
    assert replayed_offsets([1, 4, 2], True, ForwardMode.DRAFT_EXTEND_V2) == [0, 4, 8, 12]


# -- 0003: the gate of the fused all-reduce ----------------------------------------------------


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., bool]]:
    """Return a function that asks the gate on a faked card."""
    communicator._log_sm120_fusion.cache_clear()

    def ask(capability: int, asked: bool = True, batch: int = 8, workspace: bool = True) -> bool:
        for known in (90, 100, 120):
            monkeypatch.setattr(communicator, f"_is_sm{known}_supported", capability == known)
        monkeypatch.setattr(communicator, "_is_flashinfer_available", True)
        monkeypatch.setattr(communicator, "is_dp_attention_enabled", lambda: False)
        monkeypatch.setattr(communicator, "is_flashinfer_allreduce_unavailable", lambda: False)
        monkeypatch.setattr(communicator, "is_workspace_initialized", lambda: workspace)
        args = SimpleNamespace(enable_flashinfer_allreduce_fusion=asked)
        monkeypatch.setattr(communicator, "get_global_server_args", lambda: args)
        return bool(communicator.apply_flashinfer_allreduce_fusion(batch))

    yield ask
    communicator._log_sm120_fusion.cache_clear()


LIVE_0003 = "kit 0003: FlashInfer allreduce fusion is in use on SM120"


def test_fusion_may_be_asked_for_on_sm120(
    gate: Callable[..., bool], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert gate(120)
    assert gate(120)
    assert [r.getMessage() for r in caplog.records].count(LIVE_0003) == 1


@pytest.mark.parametrize("capability", [90, 100])
def test_other_cards_are_as_released(
    gate: Callable[..., bool], capability: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert gate(capability)
    assert not gate(capability, asked=False)
    assert LIVE_0003 not in caplog.text


def test_fusion_stays_off_where_it_is_not_asked_for_or_cannot_be(
    gate: Callable[..., bool],
) -> None:
    assert not gate(120, asked=False)
    assert not gate(120, batch=0)
    assert not gate(120, batch=communicator.FUSE_ALLREDUCE_MAX_BATCH_SIZE + 1)
    assert not gate(89)


def test_the_log_says_nothing_before_there_is_a_workspace(
    gate: Callable[..., bool], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert gate(120, workspace=False)
    assert LIVE_0003 not in caplog.text


class Driver:
    """CUDA's driver as far as the workspace's preflight asks it, without or with multicast."""

    class CUdevice_attribute:
        CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED = 132

    class CUresult:
        CUDA_SUCCESS = 0

    class CUmemAllocationGranularity_flags:
        CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1

    class CUmulticastGranularity_flags:
        CU_MULTICAST_GRANULARITY_RECOMMENDED = 1

    class CUmulticastObjectProp:
        pass

    def __init__(self, multicast: bool) -> None:
        self.multicast = multicast

    def cuDeviceGetAttribute(self, attribute: int, device: int) -> tuple[int, int]:
        assert attribute == 132
        return 0, int(self.multicast)

    def cuMemGetAllocationGranularity(self, prop: Any, flag: int) -> tuple[int, int]:
        return 0, 1 << 21

    def cuMulticastGetGranularity(self, prop: Any, flag: int) -> tuple[int, int]:
        return (0, 1 << 24) if self.multicast else (801, 0)


@pytest.mark.parametrize(
    ("sm120", "multicast", "fits"), [(True, False, True), (True, True, True), (False, False, False)]
)
def test_the_workspace_is_sized_without_multicast_on_sm120_only(
    monkeypatch: pytest.MonkeyPatch, sm120: bool, multicast: bool, fits: bool
) -> None:
    monkeypatch.setattr(flashinfer_comm_fusion, "is_sm120_supported", lambda: sm120)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    props = SimpleNamespace(requestedHandleTypes=1)

    def sizes() -> list[int]:
        found: list[int] = flashinfer_comm_fusion._flashinfer_trtllm_workspace_allocation_sizes(
            Driver(multicast), props, 8, 2048, 4096, torch.bfloat16
        )
        return found

    if not fits:
        with pytest.raises(RuntimeError, match="cuMulticastGetGranularity"):
            sizes()
        return
    step = 1 << (24 if multicast else 21)
    assert len(sizes()) == 3
    assert all(size > 0 and size % step == 0 for size in sizes())


def test_flashinfer_is_asked_to_build_its_kernels_for_sm120_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Context:
        def get_nvcc_flags_list(self, supported_major_versions: Any = None) -> list[int]:
            return list(supported_major_versions)

    context = Context()
    ar = SimpleNamespace(
        gen_trtllm_comm_module=lambda: context.get_nvcc_flags_list(supported_major_versions=[9, 10])
    )
    jit = SimpleNamespace(current_compilation_context=context)
    modules = {
        "flashinfer": SimpleNamespace(),
        "flashinfer.comm": SimpleNamespace(trtllm_ar=ar),
        "flashinfer.jit": SimpleNamespace(comm=jit),
    }
    for name, module in modules.items():
        monkeypatch.setitem(__import__("sys").modules, name, module)
    assert ar.gen_trtllm_comm_module() == [9, 10]
    for _ in range(2):
        flashinfer_comm_fusion._build_kernels_for_sm120()
        assert ar.gen_trtllm_comm_module() == [9, 10, 12]
    # Other modules of FlashInfer keep their lists.
    assert context.get_nvcc_flags_list([9, 10]) == [9, 10]


# -- 0004: torch symmetric memory --------------------------------------------------------------


class Node:
    """A host of faked GPUs; builds the communicator of one rank and notes what it does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch
        self.allocated: list[int] = []
        self.reduced: list[str] = []

    def build(
        self,
        capability: int,
        world: int,
        multicast: int = 0,
        blocked: frozenset[tuple[int, int]] = frozenset(),
        rank: int = 0,
    ) -> Any:
        gathered: list[list[Any]] = []

        def gather(out: list[Any], mine: Any, group: Any) -> None:
            # Every rank's answer: first its device, then the peers it cannot reach.
            gathered.append(mine)
            for peer in range(world):
                if len(gathered) == 1:
                    out[peer] = peer
                else:
                    out[peer] = [q for q in range(world) if (peer, q) in blocked]
            assert out[rank] == mine

        def empty(count: int, device: Any, dtype: torch.dtype) -> torch.Tensor:
            self.allocated.append(count)
            return torch.zeros(4096, dtype=dtype)

        cuda = torch.cuda
        self.patch.setattr(cuda, "set_device", lambda device: None)
        self.patch.setattr(cuda, "get_device_capability", lambda device: (capability, 0))
        self.patch.setattr(cuda, "can_device_access_peer", lambda a, b: (a, b) not in blocked)
        self.patch.setattr(torch_symm_mem, "torch_symm_mem_available", True)
        self.patch.setattr(torch_symm_mem.dist, "get_world_size", lambda group: world)
        self.patch.setattr(torch_symm_mem.dist, "all_gather_object", gather)
        handle = SimpleNamespace(multicast_ptr=multicast)
        symm = SimpleNamespace(empty=empty, rendezvous=lambda buffer, name: handle)
        self.patch.setattr(torch_symm_mem, "torch_symm_mem", symm, raising=False)
        ops = SimpleNamespace(
            multimem_all_reduce_=lambda *args: self.reduced.append("multimem"),
            two_shot_all_reduce_=lambda *args: self.reduced.append("two-shot"),
        )
        self.patch.setattr(torch_symm_mem.torch.ops, "symm_mem", ops, raising=False)
        group = SimpleNamespace(group_name="tp")
        return torch_symm_mem.TorchSymmMemCommunicator(group, rank)

    def kernel(self, built: Any) -> str:
        built.all_reduce(torch.ones(64, dtype=torch.bfloat16))
        return self.reduced[-1]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(monkeypatch)


LIVE_0004 = "kit 0004: torch symm mem is live on SM120"


@pytest.mark.parametrize("world", [2, 4, 6, 8])
def test_sm120_without_multicast_uses_the_two_shot_kernel(
    node: Node, world: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    built = node.build(12, world)
    assert not built.disabled
    assert built.should_torch_symm_mem_allreduce(torch.ones(8, dtype=torch.bfloat16))
    assert node.kernel(built) == "two-shot"
    assert LIVE_0004 in caplog.text


def test_sm120_with_multicast_uses_the_two_shot_kernel_too(node: Node) -> None:
    # No world size is known to gain from multimem there.
    assert node.kernel(node.build(12, 8, multicast=1)) == "two-shot"


@pytest.mark.parametrize(("capability", "world"), [(12, 3), (12, 5), (11, 8), (13, 8), (8, 8)])
def test_what_is_in_no_table_is_disabled_and_no_key_error(
    node: Node, capability: int, world: int, caplog: pytest.LogCaptureFixture
) -> None:
    built = node.build(capability, world)
    assert built.disabled
    assert node.allocated == []
    assert "not supported" in caplog.text


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_one_missing_peer_disables_every_rank_and_is_named(
    node: Node, rank: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    built = node.build(12, 4, blocked=frozenset({(1, 3), (3, 1)}), rank=rank)
    assert built.disabled
    assert not built.should_torch_symm_mem_allreduce(torch.ones(8, dtype=torch.bfloat16))
    # Nothing was allocated or exchanged: a rank that went on alone would wait for ever.
    assert node.allocated == []
    assert "kit 0004: torch symm mem is disabled" in caplog.text
    assert "nvidia-smi topo -p2p r" in caplog.text
    if rank in (1, 3):
        assert f"GPU {rank} has no peer-to-peer access to GPU [{4 - rank}]" in caplog.text
    assert LIVE_0004 not in caplog.text


def test_sm90_is_as_released(node: Node) -> None:
    assert node.kernel(node.build(9, 8, multicast=1)) == "multimem"
    assert node.kernel(node.build(9, 2, multicast=1)) == "two-shot"
    assert node.build(9, 8, multicast=0).disabled


# -- 0001: the threshold -----------------------------------------------------------------------


def test_the_threshold_is_set_before_anything_in_the_constructor_can_raise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = object.__new__(eagle_worker_v2.EAGLEWorkerV2)
    assert worker.spec_disable_batch_threshold == 0
    # No other attribute of the arguments exists, so the second line raises.
    args = SimpleNamespace(speculative_disable_batch_threshold=7)
    with pytest.raises(AttributeError, match="speculative_eagle_topk"):
        worker.__init__(args, 0, 0, None, 0, 0, 0, 0, None)
    assert worker.spec_disable_batch_threshold == 7


def parse(*argv: str) -> Any:
    import argparse

    parser = argparse.ArgumentParser()
    server_args_module.ServerArgs.add_cli_args(parser)
    return parser.parse_args(["--model-path", "x", *argv])


def test_the_command_line_has_the_switch_and_it_is_off_by_default() -> None:
    assert parse().speculative_disable_batch_threshold == 0
    given = parse("--speculative-disable-batch-threshold", "12")
    assert given.speculative_disable_batch_threshold == 12


def unsupported(**changes: Any) -> str | None:
    names = ["adaptive", "dp_attention", "two_batch_overlap", "pdmux", "multi_layer_eagle", "lora"]
    args = {f"{'speculative' if n == 'adaptive' else 'enable'}_{n}": False for n in names}
    args |= {"speculative_algorithm": "EAGLE3", "pp_size": 1}
    runner = SimpleNamespace(
        hybrid_gdn_config=None,
        mamba2_config=None,
        model_is_mrope=False,
        model_config=SimpleNamespace(is_encoder_decoder=False),
    )
    found: str | None = plain_decode.unsupported_reason(SimpleNamespace(**args | changes), runner)
    return found


def test_what_the_threshold_does_not_go_with_is_named() -> None:
    assert unsupported() is None
    assert "EAGLE" in str(unsupported(speculative_algorithm="NGRAM"))
    assert "enable_dp_attention" in str(unsupported(enable_dp_attention=True))
    assert "speculative_adaptive" in str(unsupported(speculative_adaptive=True))
    assert "pipeline" in str(unsupported(pp_size=2))


def test_a_failing_graph_capture_leaves_everything_as_it_was(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from sglang.srt.model_executor import cuda_graph_runner

    seen: dict[str, Any] = {}

    def fails(runner: Any, attn_backend: Any) -> None:
        seen.update(sizes=list(args.cuda_graph_bs), hidden=args.enable_return_hidden_states)
        seen.update(speculative=runner.spec_algorithm.is_speculative())
        raise RuntimeError("out of memory")

    monkeypatch.setattr(cuda_graph_runner, "CudaGraphRunner", fails)
    algorithm = plain_decode.SpeculativeAlgorithm.EAGLE3
    args = SimpleNamespace(
        disable_cuda_graph=False, cuda_graph_bs=[1, 2, 4, 8], enable_return_hidden_states=False
    )
    target = SimpleNamespace(
        graph_runner="graphs",
        attn_backend="backend",
        init_new_workspace=False,
        spec_algorithm=algorithm,
        req_to_token_pool=SimpleNamespace(size=8),
        _get_attention_backend=lambda init_new_workspace: "another backend",
    )
    plain = object.__new__(plain_decode.PlainDecode)
    plain.worker, plain.target, plain.threshold = SimpleNamespace(server_args=args), target, 2
    plain.graph_runner = plain.attn_backend = None
    plain._capture()
    assert seen == {"sizes": [4, 8], "hidden": True, "speculative": False}
    assert plain.graph_runner is None
    assert args.cuda_graph_bs == [1, 2, 4, 8]
    assert args.enable_return_hidden_states is False
    assert target.spec_algorithm is algorithm
    assert "capturing the plain decode graphs failed" in caplog.text
    with plain._resources():
        # Without graphs of its own a plain step runs eagerly, on the target's own attention backend.
        assert (target.attn_backend, target.graph_runner) == ("backend", None)
    assert (target.attn_backend, target.graph_runner) == ("backend", "graphs")
