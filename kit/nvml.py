"""NVML behind one small protocol, so that what a GPU answers can be recorded and replayed.

An :class:`Nvml` is asked by the name of NVML's own function; a GPU is an index wrapped in :class:`Gpu`, and every
answer is plain data (structures become dictionaries). Names, units and codes are those of
https://docs.nvidia.com/deploy/nvml-api/.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson

from kit.errors import UserError

CLOCK_SM, CLOCK_MEMORY = 1, 2
TEMPERATURE_GPU = 0
PCIE_TX_BYTES, PCIE_RX_BYTES = 0, 1
P2P_READ, P2P_WRITE, P2P_NVLINK = 0, 1, 2
P2P_STATUS = {
    0: "OK",
    1: "chipset not supported",
    2: "GPU not supported",
    3: "IOH topology not supported",
    4: "disabled by registry key",
    5: "not supported",
}
TOPOLOGY = {0: "internal", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
# Bits of nvmlDeviceGetCurrentClocksEventReasons.
EVENT_REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
}
# The inode of the first pid namespace (PROC_PID_INIT_INO in the kernel): any other is a container's.
HOST_PID_NAMESPACE = "pid:[4026531836]"
NO_VALUE = (1 << 64) - 1
"""What NVML writes into an unsigned field that it cannot fill."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU in a question: its index in NVML's order."""

    index: int


class NvmlError(Exception):
    """NVML, the driver or the GPU does not answer a question; the text is NVML's."""


class Nvml(Protocol):
    """Something that answers NVML's questions."""

    def ask(self, function: str, *args: Any) -> Any:
        """Return the answer of an NVML function as plain data.

        Args:
            function: Its name without the leading ``nvml``: ``DeviceGetName``.
            args: Integers, and :class:`Gpu` where NVML takes a device.

        Raises:
            NvmlError: it cannot be answered here.
        """
        ...


def plain(value: Any) -> Any:
    """Return an NVML answer as data that JSON can hold: text for bytes, dictionaries for structures."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, ctypes.Structure):
        return {f[0]: plain(getattr(value, f[0])) for f in value._fields_}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return {k: plain(v) for k, v in vars(value).items() if not k.startswith("_")}


def key(function: str, args: tuple[Any, ...]) -> str:
    """Return how a question is written down: ``DeviceGetMaxClockInfo(gpu 0, 1)``."""
    words = [f"gpu {a.index}" if isinstance(a, Gpu) else str(a) for a in args]
    return f"{function}({', '.join(words)})"


class LibraryNvml:
    """The driver's own NVML through nvidia-ml-py."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._handles: dict[int, Any] = {}

    def _handle(self, index: int) -> Any:
        if index not in self._handles:
            self._handles[index] = self._library.nvmlDeviceGetHandleByIndex(index)
        return self._handles[index]

    def ask(self, function: str, *args: Any) -> Any:
        """See :class:`Nvml`."""
        try:
            given = [self._handle(a.index) if isinstance(a, Gpu) else a for a in args]
            return plain(getattr(self._library, f"nvml{function}")(*given))
        except Exception as error:  # noqa: BLE001 - NVML raises one class per code, ctypes its own
            raise NvmlError(str(error) or type(error).__name__) from None


class RecordingNvml:
    """Passes questions on and keeps every answer, the latest of each, for :class:`RecordedNvml`."""

    def __init__(self, inner: Nvml) -> None:
        self._inner = inner
        self.answers: dict[str, Any] = {}

    def ask(self, function: str, *args: Any) -> Any:
        """See :class:`Nvml`."""
        try:
            answer = self._inner.ask(function, *args)
        except NvmlError as error:
            self.answers[key(function, args)] = {"error": str(error)}
            raise
        self.answers[key(function, args)] = answer
        return answer


class RecordedNvml:
    """Answers from a recording; what was not recorded is "Not Recorded".

    Args:
        answers: By :func:`key`; ``{"error": TEXT}`` is raised as :class:`NvmlError`.
    """

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = dict(answers)

    @classmethod
    def load(cls, path: Path) -> RecordedNvml:
        """Read a JSON file whose ``nvml`` object holds the answers.

        Raises:
            UserError: not readable, or not such a file.
        """
        try:
            return cls(orjson.loads(path.read_bytes())["nvml"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is no recording of NVML: {error}.") from None

    def ask(self, function: str, *args: Any) -> Any:
        """See :class:`Nvml`."""
        answer = self.answers.get(key(function, args), {"error": "Not Recorded"})
        if isinstance(answer, dict) and set(answer) == {"error"}:
            raise NvmlError(answer["error"])
        return answer


def maybe(nvml: Nvml, function: str, *args: Any) -> Any:
    """Return the answer, None where there is none."""
    try:
        return nvml.ask(function, *args)
    except NvmlError:
        return None


@contextmanager
def opened() -> Iterator[Nvml]:
    """Open the driver's NVML.

    Raises:
        NvmlError: no library, no driver, or no permission: there is no usable GPU.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:  # noqa: BLE001 - a missing library, driver or permission: all mean "none here"
        raise NvmlError(str(error) or type(error).__name__) from None
    try:
        yield LibraryNvml(pynvml)
    finally:
        pynvml.nvmlShutdown()


def gpu_count(nvml: Nvml) -> int:
    """Return how many GPUs NVML sees; 0 where it does not answer."""
    return int(maybe(nvml, "DeviceGetCount") or 0)


def link_kind(nvml: Nvml, a: Gpu, b: Gpu) -> str:
    """Return how two GPUs are linked: NVLINK, or the nearest common ancestor as ``nvidia-smi topo`` names it."""
    if maybe(nvml, "DeviceGetP2PStatus", a, b, P2P_NVLINK) == 0:
        return "NVLINK"
    level = maybe(nvml, "DeviceGetTopologyCommonAncestor", a, b)
    return TOPOLOGY.get(level, "?") if level is not None else "?"


def peer_access(nvml: Nvml, gpus: Sequence[Gpu]) -> Iterator[tuple[Gpu, Gpu, int, int | None]]:
    """Yield (from, to, kind, status) of each direction between GPUs, reading and writing.

    Args:
        nvml: Whom to ask.
        gpus: The GPUs; fewer than two give nothing.

    ``kind`` is P2P_READ or P2P_WRITE, ``status`` 0 where access is open, a key of P2P_STATUS where it is closed, None
    where the driver does not tell.
    """
    for a, b in itertools.permutations(gpus, 2):
        for kind in (P2P_READ, P2P_WRITE):
            yield a, b, kind, maybe(nvml, "DeviceGetP2PStatus", a, b, kind)


def event_reasons(mask: int) -> list[str]:
    """Return the words for a mask of clock event (throttle) reasons."""
    return [word for bit, word in EVENT_REASONS.items() if mask & bit]


def current_event_reasons(nvml: Nvml, gpu: Gpu) -> int | None:
    """Return the mask of clock event reasons; older drivers know the function by its former name."""
    for name in ("DeviceGetCurrentClocksEventReasons", "DeviceGetCurrentClocksThrottleReasons"):
        mask = maybe(nvml, name, gpu)
        if mask is not None:
            return int(mask)
    return None


def gpu_processes(nvml: Nvml, gpu: Gpu, *, drawing: bool = False) -> list[dict[str, Any]] | None:
    """Return the processes on a GPU as ``{"pid": …, "usedGpuMemory": bytes or None}``; None if not told.

    Pids are those of the host; in a container with pids of its own NVML leaves out or renumbers them.

    Args:
        nvml: Who answers.
        gpu: Which GPU.
        drawing: Also those that draw, such as a desktop; one that does both is named once.
    """
    found: dict[int, dict[str, Any]] = {}
    told = False
    for kind in ("Compute", "Graphics") if drawing else ("Compute",):
        listed = maybe(nvml, f"DeviceGet{kind}RunningProcesses", gpu)
        told = told or listed is not None
        for entry in listed or []:
            used, pid = entry.get("usedGpuMemory"), int(entry["pid"])
            held = used if used and used < NO_VALUE else None
            found.setdefault(pid, {"pid": pid, "usedGpuMemory": held})
    return list(found.values()) if told else None


def visible_gpus(nvml: Nvml, environ: Mapping[str, str]) -> list[Gpu]:
    """Return the GPUs that CUDA would see, in its order.

    ``CUDA_VISIBLE_DEVICES`` names indices or beginnings of UUIDs; CUDA ends the list at the first it does not know.
    """
    gpus = [Gpu(i) for i in range(gpu_count(nvml))]
    named = environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return gpus
    visible: list[Gpu] = []
    for word in (w.strip() for w in named.split(",")):
        fit = [g for g in gpus if _names(word, g, nvml)]
        if not fit:
            break
        visible.append(fit[0])
    return visible


def _names(word: str, gpu: Gpu, nvml: Nvml) -> bool:
    if word.isdigit():
        return int(word) == gpu.index
    return bool(word) and str(maybe(nvml, "DeviceGetUUID", gpu)).startswith(word)


def pids_are_the_hosts(root: Path = Path("/")) -> bool:
    """Return whether pids here are the host's, so that those that NVML tells can be looked up."""
    try:
        return str((root / "proc/self/ns/pid").readlink()) == HOST_PID_NAMESPACE
    except OSError:
        return False
