"""Checks of driver and GPUs, all through NVML."""

from __future__ import annotations

import re

from kit.backends.engine import version_tuple
from kit.doctor.cards import Cards, no_gpu, on_cards
from kit.doctor.model import Check, Seen, blocker, ok, unavailable, warning
from kit.doctor.needs import gpu_memory_needed
from kit.doctor.probes import Host, Job, used_gpus
from kit.nvml import (
    CLOCK_MEMORY,
    CLOCK_SM,
    TEMPERATURE_GPU,
    Gpu,
    Nvml,
    current_event_reasons,
    event_reasons,
    maybe,
)
from kit.units import MIB

MIN_DRIVER = (580,)
# CUDA 13 has no code for anything older than Turing.
MIN_SM = (7, 5)
# Below Ampere there is no bfloat16, which the pairs and most EAGLE-3 drafts are in.
BF16_SM = (8, 0)
# Bits of the event reasons that slow a GPU down because something is wrong.
BAD_REASONS = 0x8 | 0x20 | 0x40 | 0x80
HOT_C = 85
NO_DRIVER_REMEDY = (
    "Install the NVIDIA driver (branch 580 or newer) on the host, give this container its GPUs, "
    "or choose --rig cpu."
)


def _driver(host: Host, job: Job) -> Seen:
    if host.nvml is None:
        if job.needs_gpu and not job.elsewhere:
            return blocker(f"NVML does not answer: {host.nvml_error}", NO_DRIVER_REMEDY)
        return unavailable(f"no NVIDIA driver here ({host.nvml_error})")
    version = str(maybe(host.nvml, "SystemGetDriverVersion") or "")
    if not version_tuple(version):
        return unavailable("the driver does not tell its version")
    cuda = maybe(host.nvml, "SystemGetCudaDriverVersion_v2") or maybe(
        host.nvml, "SystemGetCudaDriverVersion"
    )
    text = f"driver {version}" + (f", CUDA {cuda // 1000}.{cuda % 1000 // 10}" if cuda else "")
    if version_tuple(version) < MIN_DRIVER:
        remedy = (
            "Install a driver of branch 580 or newer on the host; a newer container does not help."
        )
        if job.needs_gpu:
            return blocker(text, remedy)
        return warning(text, remedy)
    return ok(text)


def _name(nvml: Nvml, gpu: Gpu) -> str:
    return str(maybe(nvml, "DeviceGetName", gpu) or "a GPU without a name")


def _model(host: Host, job: Job) -> Seen:
    if host.nvml is None:
        return no_gpu(host, job)
    seen = [_name(host.nvml, g) for g in host.gpus()]
    listed = ", ".join(f"{seen.count(n)}× {n}" for n in dict.fromkeys(seen)) or "no GPU"
    if job.rig is None or not job.needs_gpu:
        return ok(listed) if seen else no_gpu(host, job)
    wanted = job.rig.match.gpu or ""
    chosen = used_gpus(host, job)
    fit = [g for g in chosen if re.search(wanted, _name(host.nvml, g))]
    count = max(job.rig.match.min_count, job.wanted_gpus)
    # Visible GPUs may be more than a server takes; the rig's own minimum counts all that are visible.
    if len(chosen) < job.wanted_gpus or len(seen) < count:
        return blocker(
            f"{listed}; the rig {job.rig.name} needs {count}",
            "Make more GPUs visible (CUDA_VISIBLE_DEVICES, the container's devices) or choose another rig.",
        )
    if len(fit) < job.wanted_gpus:
        return warning(
            f"{listed}; the rig {job.rig.name} is for GPUs matching /{wanted}/",
            "Choose the rig of this GPU, or copy the rig file: numbers will not be comparable with its golden file.",
        )
    return ok(listed)


@on_cards
def _sm(cards: Cards) -> Seen:
    found = cards.ask("DeviceGetCudaComputeCapability")
    if any(c is None for c in found):
        return unavailable("the driver does not tell the compute capability")
    text = "SM " + cards.each([f"{a}.{b}" for a, b in found])
    lowest = min(tuple(c) for c in found)
    if lowest < MIN_SM:
        return blocker(
            text, "Use a GPU of compute capability 7.5 or newer: CUDA 13 has dropped it."
        )
    if lowest < BF16_SM:
        return blocker(text, "Use a GPU of compute capability 8.0 or newer: it has no bfloat16.")
    return ok(text)


@on_cards
def _memory(cards: Cards) -> Seen:
    infos = cards.ask("DeviceGetMemoryInfo")
    if any(i is None for i in infos):
        return unavailable("the driver does not tell the memory")
    text = cards.each([f"{i['free'] // MIB} of {i['total'] // MIB} MiB free" for i in infos])
    least_total = min(i["total"] for i in infos)
    least_free = min(i["free"] for i in infos)
    need = gpu_memory_needed(cards.job, cards.host.environ)
    if need is not None:
        text += f"; weights take about {need // MIB} MiB a GPU"
        if need > least_total:
            return blocker(text, "Use more GPUs (tensor_parallel) or smaller models.")
        if need > least_free:
            return blocker(text, "Free the memory: gpu.processes names who holds it.")
    if least_free < 0.9 * least_total:
        return warning(
            text, "Free the memory: SGLang sizes its cache by what is free, so less fits at high C."
        )
    return ok(text)


@on_cards
def _ecc(cards: Cards) -> Seen:
    words, bad, pending = [], [], []
    for gpu in cards.gpus:
        mode = maybe(cards.nvml, "DeviceGetEccMode", gpu)
        if mode is None:
            words.append("no ECC")
            continue
        words.append("ECC on" if mode[0] else "ECC off")
        if mode[0] != mode[1]:
            pending.append(str(gpu.index))
        # 1: uncorrected, 0: since the last reboot.
        errors = maybe(cards.nvml, "DeviceGetTotalEccErrors", gpu, 1, 0)
        rows = maybe(cards.nvml, "DeviceGetRemappedRows", gpu)
        if errors or (rows and (rows[2] or rows[3])):
            what = f"{errors or 0} uncorrected errors"
            bad.append(
                f"GPU {gpu.index}: {what}" + (", row remapping pending" if rows and rows[2] else "")
            )
    text = cards.each(words)
    if bad:
        return warning(
            f"{text}; {'; '.join(bad)}", "Reset or restart; if it comes back, the card is failing."
        )
    if pending:
        return warning(
            f"{text}; another setting waits for a restart on GPU {', '.join(pending)}",
            "Restart the host, or set it back with `nvidia-smi -e`.",
        )
    if len(set(words)) > 1:
        return warning(text, "Set all GPUs alike with `nvidia-smi -e 0` or `-e 1` and restart.")
    return ok(text)


@on_cards
def _power(cards: Cards) -> Seen:
    words, low = [], False
    for gpu in cards.gpus:
        limit = maybe(cards.nvml, "DeviceGetEnforcedPowerLimit", gpu)
        default = maybe(cards.nvml, "DeviceGetPowerManagementDefaultLimit", gpu)
        if limit is None:
            words.append("not told")
            continue
        words.append(f"{limit / 1000:.0f} W" + (f" of {default / 1000:.0f} W" if default else ""))
        low = low or bool(default and limit < 0.98 * default)
    if set(words) == {"not told"}:
        return unavailable("the driver does not tell the power limit")
    text = f"power limit {cards.each(words)}"
    if low:
        return warning(
            text, "Set it back with `sudo nvidia-smi -pl WATTS`, or say so beside the numbers."
        )
    if len(set(words)) > 1:
        return warning(text, "Set all GPUs alike: the slowest holds up tensor parallelism.")
    return ok(text)


@on_cards
def _clocks(cards: Cards) -> Seen:
    words, low = [], False
    for gpu in cards.gpus:
        parts = []
        for kind, name in ((CLOCK_SM, "SM"), (CLOCK_MEMORY, "memory")):
            now = maybe(cards.nvml, "DeviceGetClockInfo", gpu, kind)
            top = maybe(cards.nvml, "DeviceGetMaxClockInfo", gpu, kind)
            if top is not None:
                parts.append(f"{name} {now if now is not None else '?'} of {top} MHz")
        state = maybe(cards.nvml, "DeviceGetPerformanceState", gpu)
        # 32 is NVML's "unknown".
        if state is not None and state < 32:
            parts.append(f"P{state}")
        reasons = current_event_reasons(cards.nvml, gpu) or 0
        # Application clocks hold the GPU back only where they are below the highest.
        if reasons & 0x2:
            low = True
            parts.append("held by application clocks")
        words.append(", ".join(parts) or "not told")
    if set(words) == {"not told"}:
        return unavailable("the driver does not tell clocks")
    text = cards.each(words)
    if low:
        return warning(
            text, "Release them: `sudo nvidia-smi -rgc -rmc` and `sudo nvidia-smi -rac`."
        )
    return ok(text)


@on_cards
def _throttle(cards: Cards) -> Seen:
    words, bad, known = [], False, False
    for gpu in cards.gpus:
        mask = current_event_reasons(cards.nvml, gpu)
        heat = maybe(cards.nvml, "DeviceGetTemperature", gpu, TEMPERATURE_GPU)
        known = known or mask is not None
        parts = [", ".join(event_reasons(mask or 0)) or "nothing slows it"]
        if heat is not None:
            parts.append(f"{heat} °C")
        words.append(", ".join(parts))
        bad = bad or bool((mask or 0) & BAD_REASONS) or (heat or 0) >= HOT_C
    if not known:
        return unavailable("the driver does not tell what slows the clocks")
    text = cards.each(words)
    if bad:
        return warning(
            text, "Look at cooling, the power connectors and the power supply, then try again."
        )
    return ok(text)


@on_cards
def _persistence(cards: Cards) -> Seen:
    modes = cards.ask("DeviceGetPersistenceMode")
    if any(m is None for m in modes):
        return unavailable("the driver does not tell persistence mode")
    text = f"persistence mode {cards.each(['on' if m else 'off' for m in modes])}"
    if not all(modes):
        return warning(
            text,
            "Turn it on: `sudo systemctl enable --now nvidia-persistenced`, or `sudo nvidia-smi -pm 1`.",
        )
    return ok(text)


@on_cards
def _mig(cards: Cards) -> Seen:
    modes = cards.ask("DeviceGetMigMode")
    if any(m and m[0] for m in modes):
        return warning(
            cards.each(["MIG on" if m and m[0] else "MIG off" for m in modes]),
            "A slice is not the whole GPU: its numbers compare with no golden file of the card.",
        )
    return ok("whole GPUs, MIG off" if any(modes) else "whole GPUs, no MIG")


CHECKS = (
    Check(
        "gpu.driver",
        "CUDA 13 runs on driver branch 580 and newer.",
        _driver,
        "https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html",
    ),
    Check("gpu.model", "A rig's golden numbers hold for its GPU model and number of GPUs.", _model),
    Check(
        "gpu.sm",
        "A library without code for this compute capability fails at its first kernel.",
        _sm,
        "https://github.com/sgl-project/sglang/issues/7249",
    ),
    Check(
        "gpu.memory",
        "Weights, KV cache and CUDA graphs must fit into what is free.",
        _memory,
        "https://github.com/sgl-project/sglang/issues/8008",
    ),
    Check("gpu.ecc", "ECC costs memory bandwidth on GDDR cards; errors change results.", _ecc),
    Check("gpu.power", "A lowered power limit lowers clocks under load.", _power),
    Check("gpu.clocks", "Clocks decide the step time; held clocks hide the card's speed.", _clocks),
    Check(
        "gpu.throttle",
        "A GPU that slows itself down gives lower numbers, later more so.",
        _throttle,
    ),
    Check(
        "gpu.persistence",
        "Without it the driver unloads between runs, and the next start initialises the GPU anew.",
        _persistence,
        "https://docs.nvidia.com/deploy/driver-persistence/",
    ),
    Check("gpu.mig", "A MIG slice has a part of the SMs and of the memory bandwidth.", _mig),
)
