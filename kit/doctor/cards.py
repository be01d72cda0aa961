"""The GPUs that a job would take, as checks ask them; and what a check says where there is none."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kit.doctor.model import Seen, unavailable
from kit.doctor.probes import Host, Job, used_gpus
from kit.nvml import Gpu, Nvml, maybe


def no_gpu(host: Host, job: Job) -> Seen:
    """Return what a check says where there is no GPU to look at."""
    if job.needs_gpu and host.nvml is None:
        return unavailable(f"no GPU can be asked: {host.nvml_error}")
    if job.rig is not None and not job.needs_gpu:
        return unavailable(f"the rig {job.rig.name} uses no GPU")
    return unavailable("no GPU is visible here")


def spans(indices: Sequence[int]) -> str:
    """Return ``0–2, 4, 6–7`` for ascending indices. Pure."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ", ".join(f"{r[0]}–{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)


@dataclass(frozen=True)
class Cards:
    """The GPUs that a server of the job would take, at least one, and who answers for them."""

    nvml: Nvml
    gpus: list[Gpu]
    host: Host
    job: Job

    def ask(self, function: str, *args: Any) -> list[Any]:
        """Return each GPU's answer in their order; None where there is none."""
        return [maybe(self.nvml, function, gpu, *args) for gpu in self.gpus]

    def each(self, words: Sequence[str]) -> str:
        """Return one word for all if they agree, else one for each GPU or group of them, the odd ones first."""
        if len(set(words)) == 1:
            return words[0] if len(words) == 1 else f"{words[0]} on each of {len(words)}"
        groups: dict[str, list[int]] = {}
        for gpu, word in zip(self.gpus, words, strict=True):
            groups.setdefault(word, []).append(gpu.index)
        odd_first = sorted(groups.items(), key=lambda g: (len(g[1]), g[1]))
        return "; ".join(f"GPU {spans(indices)}: {word}" for word, indices in odd_first)


def on_cards(look: Callable[[Cards], Seen]) -> Callable[[Host, Job], Seen]:
    """Make a check of one that looks at GPUs: where there are none it is not available."""

    @functools.wraps(look)
    def check(host: Host, job: Job) -> Seen:
        gpus = used_gpus(host, job)
        if host.nvml is None or not gpus:
            return no_gpu(host, job)
        return look(Cards(host.nvml, gpus, host, job))

    return check
