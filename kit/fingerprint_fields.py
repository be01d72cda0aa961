"""What each field of a fingerprint is, its unit, why it matters, and whether it must match to compare numbers.

`kit fingerprint --describe` prints this list and docs/doctor.md holds it as a table; tests hold the table, the fields
of :class:`kit.fingerprint.Fingerprint` and what :func:`kit.fingerprint.compare` does with them to this list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

# With or without GPUs: for another machine class (COMPARABLE); "class": for the highest tier only; "no": for none.
Match = Literal["with GPUs", "without GPUs", "class", "no"]
MATCH_TEXT: dict[Match, str] = {
    "with GPUs": "yes, with GPUs",
    "without GPUs": "yes, without GPUs",
    "class": "only for the tier “same machine class and software”",
    "no": "no",
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field. ``name`` of a GPU's own begins with ``gpus.``; ``unit`` is empty for words and lists."""

    name: str
    unit: str
    why: str
    match: Match
    also_class: bool = False

    @property
    def must(self) -> str:
        """Return in words whether it must match."""
        more = " (with GPUs: for the highest tier only)" if self.also_class else ""
        return MATCH_TEXT[self.match] + more


FIELDS: tuple[Field, ...] = (
    Field("schema_version", "", "Says how to read the rest.", "no"),
    Field(
        "cpu_model",
        "",
        "On a CPU it is what computes; beside GPUs it feeds them.",
        "without GPUs",
        also_class=True,
    ),
    Field(
        "cpu_cores",
        "logical processors",
        "Server and client share them: too few make one wait for the other.",
        "without GPUs",
        also_class=True,
    ),
    Field(
        "cpu_flags",
        "",
        "Vector extensions choose the CPU kernels, and so speed and rounding.",
        "without GPUs",
    ),
    Field("memory_gib", "GiB", "Weights pass through it; a full one swaps.", "no"),
    Field("memory_limit_gib", "GiB", "A container is ended at its limit.", "no"),
    Field("kernel", "major.minor", "Scheduler and drivers of the host are in it.", "no"),
    Field("os", "", "Brings libraries that the lock does not pin.", "no"),
    Field("virtualised", "yes or no", "A hypervisor takes time and hides clocks.", "no"),
    Field("python", "", "Runs scheduler, tokenizer and client.", "no"),
    Field("packages", "versions", "Hold the kernels and the scheduler.", "class"),
    Field("driver", "", "Compiles and schedules what GPUs run.", "class"),
    Field(
        "gpus",
        "count",
        "Tensor parallelism over another number of GPUs is another experiment.",
        "with GPUs",
    ),
    Field(
        "gpus.name", "", "The silicon itself: editions of one name differ in clocks.", "with GPUs"
    ),
    Field("gpus.memory_mib", "MiB", "Bounds the KV cache, and tells editions apart.", "with GPUs"),
    Field("gpus.sm", "compute capability", "Chooses the kernels.", "with GPUs"),
    Field("gpus.power_limit_w", "W", "Caps the clocks under load.", "with GPUs"),
    Field("gpus.max_sm_mhz", "MHz", "Decides the time of what computes.", "with GPUs"),
    Field("gpus.max_memory_mhz", "MHz", "Decides the time of what reads weights.", "with GPUs"),
    Field(
        "gpus.pcie_generation_max",
        "generation",
        "Half the generation is half the all-reduce bandwidth without NVLink.",
        "with GPUs",
    ),
    Field(
        "gpus.pcie_width_max",
        "lanes",
        "Half the lanes are half the all-reduce bandwidth without NVLink.",
        "with GPUs",
    ),
    Field("gpus.ecc", "on or off", "Costs memory bandwidth on GDDR cards.", "with GPUs"),
    Field(
        "topology",
        "link of each pair",
        "NVLINK, PIX, PXB, PHB, NODE or SYS: the farther, the slower each all-reduce.",
        "with GPUs",
    ),
    Field(
        "p2p",
        "yes or no",
        "Whether all GPUs read and write each other's memory: without, all-reduce goes through host memory.",
        "with GPUs",
    ),
)

HEADINGS = ("field", "unit", "why it matters", "must match to be COMPARABLE")
NOTE = (
    "What one side does not know (None) of PCIe, ECC and p2p is not held against the other. "
    "The hash changes with any field; serial numbers, host names and user names are in none."
)


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield the cells of each field, in the order of :data:`HEADINGS`."""
    for field in FIELDS:
        yield field.name, field.unit, field.why, field.must


def markdown_table() -> str:
    """Return the list as the table of docs/doctor.md."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---|---|---|---|"]
    lines += [f"| `{name}` | {unit} | {why} | {must} |" for name, unit, why, must in rows()]
    return "\n".join(lines)
