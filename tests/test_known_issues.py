from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from kit.backends.process import explain_death
from kit.known_issues import KnownIssue, all_issues, installed_versions, match, within
from kit.known_issues.live import Matcher

# (id, a line that shows it, a near miss)
SAMPLES = [
    (
        "port-in-use",
        "OSError: [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): address already in use",
        "INFO: address in use by the router: none",
    ),
    (
        "gpu-out-of-memory",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "CUDA memory: 12 GiB free",
    ),
    (
        "host-out-of-memory",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory",
        "allocated memory pool of 2 GB",
    ),
    (
        "model-path-missing",
        "OSError: /m/x is not a local folder and is not a valid model identifier listed on the hub",
        "loading config.json from a local folder",
    ),
    (
        "weights-truncated",
        "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
        "Loading safetensors checkpoint shards: 100%",
    ),
    (
        "grpc-port",
        "ValueError: SGLANG_GRPC_PORT (67207) must be between 1 and 65535",
        "SGLANG_GRPC_PORT=40000",
    ),
    (
        "kernels-package",
        "ValueError: Either a revision or a version must be specified.",
        "a revision was specified",
    ),
    (
        "import-error",
        "ModuleNotFoundError: No module named 'zmq'",
        "Ignore import error when loading sglang.srt.models.foo: No module named 'x'",
    ),
    (
        "stand-in-called",
        "kit_standin.StandInCalled: triton.jit kernel x was called",
        "kit stand-ins on the path: triton",
    ),
    (
        "driver-too-old",
        "RuntimeError: CUDA driver version is insufficient for CUDA runtime version",
        "NVIDIA driver 580.159.04",
    ),
    (
        "no-kernel-image",
        "CUDA error: no kernel image is available for execution on the device",
        "kernel image cache: 12 entries",
    ),
    (
        "shared-memory",
        "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)",
        "shared memory segment created",
    ),
    (
        "nccl-p2p-hang",
        "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE)",
        "Watchdog started with timeout 300 s",
    ),
    (
        "nccl-error",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:94, unhandled cuda error",
        "NCCL version 2.28.9+cuda13.0",
    ),
    ("nvml-lost", "Failed to initialize NVML: Unknown Error", "NVML initialized"),
    (
        "no-nvidia-runtime",
        'Error response from daemon: could not select device driver "nvidia" with capabilities: [[gpu]]',
        "device driver nvidia selected",
    ),
    (
        "triton-shared-memory",
        "triton.runtime.errors.OutOfResources: "
        "out of resource: shared memory, Required: 106496, Hardware limit: 101376",
        "shared memory per block: 101376",
    ),
    ("symm-mem-capability", "KeyError: 12", "KeyError: 128"),
    (
        "illegal-memory-access",
        "CUDA error: an illegal memory access was encountered",
        "memory access pattern: coalesced",
    ),
    (
        "gather-out-of-bounds",
        'Gather.cu:16: vectorized_gather_kernel: "vectorized gather kernel index out of bounds"` failed',
        "gather kernel compiled",
    ),
    (
        "device-side-assert",
        "RuntimeError: CUDA error: device-side assert triggered",
        "device-side checks on",
    ),
    (
        "topk-on-v2",
        "ValueError: Spec v2 only supports topk = 1",
        "Spec v1 is used because spec v2 only supports topk = 1",
    ),
    (
        "cuda-graph-capture",
        "Exception: Capture cuda graph failed: CUDA error",
        "Capture cuda graph end. Time elapsed: 3.05 s",
    ),
    (
        "disk-full",
        "OSError: [Errno 28] No space left on device: '/x'",
        "space left on device: 12 GB",
    ),
    ("too-many-files", "OSError: [Errno 24] Too many open files", "open files limit: 65536"),
    (
        "compat-library",
        "Error 804: forward compatibility was attempted on non supported HW",
        "forward compatibility package not needed",
    ),
    ("no-gpu", "RuntimeError: No CUDA GPUs are available", "1 CUDA GPU is available"),
    (
        "trust-remote-code",
        "ValueError: The repository for x contains custom code which must be executed to correctly load the model.",
        "trust_remote_code=False",
    ),
    (
        "context-too-short",
        "ValueError: Requested token count exceeds the model's maximum context length of 4096 tokens.",
        "context length 4096",
    ),
    (
        "ended-by-oom-killer",
        "Subprocess scheduler_0 (pid=3) crashed with exit code -9.",
        "Subprocess scheduler_0 ended with exit code 0",
    ),
    (
        "requests-capped",
        "Max running requests is reset to 48 for speculative decoding. You can override this.",
        "max_running_requests=48, speculative decoding is on",
    ),
    (
        "custom-all-reduce-off",
        "CustomAllreduce is disabled because it's not supported on more than two PCIe-only GPUs. To silence this",
        "CustomAllreduce is disabled because --disable-custom-all-reduce was given",
    ),
]


@pytest.mark.parametrize(("issue", "line"), [(i, line) for i, line, _ in SAMPLES])
def test_sample_line_is_recognised_and_told_first(issue: str, line: str) -> None:
    hits = match(["harmless", line])
    assert issue in [hit.issue.id for hit in hits]
    assert line[:50] in next(hit.line for hit in hits if hit.issue.id == issue)


@pytest.mark.parametrize(("issue", "miss"), [(i, miss) for i, _, miss in SAMPLES])
def test_near_miss_is_not_recognised(issue: str, miss: str) -> None:
    assert issue not in [hit.issue.id for hit in match([miss])]


def test_every_issue_has_a_sample() -> None:
    assert [i for i, _, _ in SAMPLES] == [issue.id for issue in all_issues()]
    assert len(SAMPLES) >= 25


def test_each_issue_is_told_once_and_the_most_telling_first() -> None:
    lines = [
        "ImportError: x",
        "ValueError: Either a revision or a version must be specified.",
        "ImportError: y",
    ]
    assert [hit.issue.id for hit in match(lines)] == ["kernels-package", "import-error"]


def test_a_huge_line_is_cut() -> None:
    assert match(["x" * 5000 + " CUDA out of memory"]) == []


@pytest.mark.parametrize(
    ("version", "bounds", "inside"),
    [
        ("0.5.12.post1", "==0.5.12.post1", True),
        ("0.5.12", "==0.5.12.post1", False),
        ("0.5.13", "==0.5.12.post1", False),
        ("0.13", ">=0.13", True),
        ("0.13.0", "==0.13", True),
        ("0.12.9", ">=0.13", False),
        ("0.9", ">=0.13", False),
        ("2.11.0+cu130", "<2.12", True),
        ("2.12.0", ">=2.11,<2.12", False),
    ],
)
def test_bounds_of_a_version(version: str, bounds: str, inside: bool) -> None:
    assert within(version, bounds) == inside


@pytest.mark.parametrize("bounds", ["0.13", "~=0.13", "SGLang 0.5.12.post1", ">=", ""])
def test_bounds_that_cannot_be_read_are_refused(bounds: str) -> None:
    data: dict[str, Any] = {
        "id": "x-y",
        "pattern": "x",
        "cause": "long enough",
        "remedy": "long enough",
    }
    with pytest.raises(ValidationError, match="bounds of a version"):
        KnownIssue(**data, versions={"sglang": bounds})


LINE = "ValueError: Either a revision or a version must be specified."


@pytest.mark.parametrize(
    ("installed", "told"),
    [
        (None, True),
        ({}, True),
        ({"kernels": "0.13.1", "transformers": "5.6.0"}, True),
        ({"kernels": "0.12.0", "transformers": "5.6.0"}, False),
        ({"transformers": "5.7.0"}, False),
    ],
)
def test_an_issue_of_other_versions_is_not_told(
    installed: dict[str, str] | None, told: bool
) -> None:
    assert [h.issue.id for h in match([LINE], installed=installed)] == ["kernels-package"] * told
    assert bool(Matcher(installed).feed(LINE.encode() + b"\n")) == told


def test_versions_that_issues_name_are_read_from_this_python() -> None:
    named = {package for issue in all_issues() for package in issue.versions}
    found = installed_versions()
    assert found["sglang"] == importlib.metadata.version("sglang")
    assert set(found) <= named
    # What is known of the pinned SGLang is told where that is installed.
    pinned = [issue for issue in all_issues() if "sglang" in issue.versions]
    assert pinned
    assert all(issue.applies({"sglang": found["sglang"]}) for issue in pinned)


def test_the_remedy_of_a_dead_server_names_versions_and_link(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(LINE + "\n")
    error = explain_death(log, "ended")
    assert "Known of kernels >=0.13, transformers ==5.6.0." in error.remedy
    elsewhere = explain_death(log, "ended", {"transformers": "5.7.0"})
    assert elsewhere.sentence == "The server ended."
    log.write_text("RuntimeError: no kernel image is available for execution on the device\n")
    assert "https://github.com/sgl-project/sglang/issues/7249" in explain_death(log, "x").remedy


def test_a_line_that_no_server_dies_of_is_not_named_as_its_cause(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    line = next(line for issue, line, _ in SAMPLES if issue == "requests-capped")
    log.write_text(line + "\n")
    assert explain_death(log, "ended").sentence == "The server ended."
    assert [h.issue.id for h in match([line])] == ["requests-capped"]
