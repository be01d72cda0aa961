"""Checks of how GPUs are wired: PCIe, links, peer access, IOMMU."""

from __future__ import annotations

import itertools
import re
from collections import Counter

from kit.doctor.cards import Cards, on_cards, spans
from kit.doctor.model import Check, Seen, ok, unavailable, warning
from kit.doctor.probes import Host, Job, used_gpus
from kit.nvml import (
    P2P_READ,
    P2P_STATUS,
    current_event_reasons,
    link_kind,
    maybe,
    peer_access,
)

IDLE = 0x1
P2P_LINK = "https://github.com/NVIDIA/nccl/issues/1999"


@on_cards
def _pcie(cards: Cards) -> Seen:
    words, narrow, asleep, slow = [], False, False, False
    most: set[tuple[int, int]] = set()
    for gpu in cards.gpus:
        now = maybe(cards.nvml, "DeviceGetCurrPcieLinkGeneration", gpu)
        top = maybe(cards.nvml, "DeviceGetMaxPcieLinkGeneration", gpu)
        width = maybe(cards.nvml, "DeviceGetCurrPcieLinkWidth", gpu)
        widest = maybe(cards.nvml, "DeviceGetMaxPcieLinkWidth", gpu)
        if None in (now, top, width, widest):
            words.append("not told")
            continue
        words.append(f"Gen{now} x{width} of Gen{top} x{widest}")
        narrow = narrow or width < widest
        most.add((top, widest))
        if now < top:
            # An idle GPU lowers its link to save power and raises it at the first transfer.
            idle = bool((current_event_reasons(cards.nvml, gpu) or 0) & IDLE)
            asleep, slow = asleep or idle, slow or not idle
    if set(words) == {"not told"}:
        return unavailable("the driver does not tell the PCIe link")
    text = cards.each(words)
    if narrow or slow:
        return warning(
            text,
            "Look at slot, riser and BIOS (bifurcation, link speed): the card can do more than the link gives.",
        )
    if len(most) > 1:
        return warning(
            text,
            "Put the odd card into a slot like the others': it holds up tensor parallelism.",
        )
    return ok(text + (" (lowered while idle)" if asleep else ""))


@on_cards
def _links(cards: Cards) -> Seen:
    gpus = cards.gpus
    if len(gpus) < 2:
        return ok("one GPU, no link to another")
    links = {(a, b): link_kind(cards.nvml, a, b) for a, b in itertools.combinations(gpus, 2)}
    kinds = Counter(links.values())
    text = ", ".join(
        f"{n} {'pair' if n == 1 else 'pairs'} {kind}" for kind, n in kinds.most_common()
    )
    if set(kinds) == {"?"}:
        return unavailable("the driver does not tell how the GPUs are linked")
    if "NVLINK" in kinds and len(kinds) > 1:
        without = [g.index for g in gpus if "NVLINK" not in {k for p, k in links.items() if g in p}]
        where = f"; no NVLink at GPU {spans(without)}" if without else ""
        return warning(
            text + where,
            "Not all pairs have NVLink: look at bridges and, with NVSwitch, at nvidia-fabricmanager and "
            "`nvidia-smi nvlink -s`.",
        )
    if "SYS" in kinds:
        return warning(
            text,
            "Choose GPUs under one CPU socket (CUDA_VISIBLE_DEVICES): SYS goes through the link between sockets.",
        )
    return ok(text)


@on_cards
def _p2p(cards: Cards) -> Seen:
    gpus = cards.gpus
    if len(gpus) < 2:
        return ok("one GPU, no peer")
    bad: Counter[str] = Counter()
    # By GPU, the directions that are closed: a card that all of its peers miss is named.
    closed: Counter[int] = Counter()
    told = 0
    for a, b, kind, status in peer_access(cards.nvml, gpus):
        told += status is not None
        if status:
            word = "read" if kind == P2P_READ else "write"
            bad[f"{word}: {P2P_STATUS.get(status, f'status {status}')}"] += 1
            closed.update((a.index, b.index))
    pairs = len(gpus) * (len(gpus) - 1)
    if not told:
        return unavailable("the driver does not tell about peer access")
    if bad:
        text = ", ".join(f"{what} in {n} of {pairs} directions" for what, n in bad.most_common())
        alone = [i for i, n in closed.items() if n == 4 * (len(gpus) - 1)]
        if alone and len(alone) < len(gpus):
            text += f"; all of them with GPU {spans(sorted(alone))}"
        return warning(
            text + _driver_options(cards.host),
            "Without peer access all-reduce goes through host memory; look at IOMMU, ACS and the driver's "
            "ForceP2P option.",
        )
    return ok(f"readable and writable in all {pairs} directions")


def _driver_options(host: Host) -> str:
    """Return the driver's registry options, which ForceP2P is one of, where the driver tells them."""
    params = host.text("/proc/driver/nvidia/params") or ""
    found = re.search(r'^RegistryDwords:\s*"(.+)"$', params, re.M)
    return f"; driver options {found.group(1)}" if found else ""


def _iommu(host: Host, job: Job) -> Seen:
    line = host.text("/proc/cmdline")
    if line is None:
        return unavailable("/proc/cmdline cannot be read")
    words = line.split()
    told = [w for w in words if "iommu" in w or w.startswith("pcie_acs_override")]
    try:
        groups = len(list(host.path("/sys/kernel/iommu_groups").iterdir()))
    except OSError:
        groups = 0
    text = f"kernel command line: {' '.join(told) or 'nothing about IOMMU or ACS'}; {groups} IOMMU groups"
    passed = any(w in ("iommu=pt", "iommu=off", "intel_iommu=off", "amd_iommu=off") for w in words)
    if max(job.wanted_gpus, len(used_gpus(host, job))) < 2:
        return ok(f"{text} (matters between GPUs only)")
    if groups and not passed:
        return warning(
            text,
            "If NCCL hangs: boot with iommu=pt (or off) and turn ACS off in the BIOS; "
            "NCCL_P2P_DISABLE=1 shows whether that is it.",
        )
    return ok(text)


CHECKS = (
    Check(
        "topology.pcie",
        "Tensor parallelism over PCIe is as fast as the slowest link.",
        _pcie,
    ),
    Check(
        "topology.links",
        "The further two GPUs are apart, the slower each all-reduce of each layer.",
        _links,
        "https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html",
    ),
    Check("topology.p2p", "Direct access between GPUs decides all-reduce time.", _p2p, P2P_LINK),
    Check(
        "topology.iommu",
        "An IOMMU that translates, or ACS, sends peer traffic through the root complex: NCCL hangs or crawls.",
        _iommu,
        P2P_LINK,
    ),
)
