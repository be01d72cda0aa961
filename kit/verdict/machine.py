"""Findings about the machine: what telemetry saw while a level was measured, and what the doctor said. Pure.

A GPU that another process used voids the numbers of its level. A GPU that slowed itself down, and processors that were
shared, are warnings: they do not void numbers, and they name a cause for numbers that are lower than they should be.
What the doctor warned of is a note.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kit.records import LevelRecord, RunData
from kit.telemetry.summary import Summary, summarize
from kit.verdict.model import Finding

# Reasons that mean that something is wrong, and one that is normal under full load.
THROTTLED = (
    "hardware slowdown",
    "software thermal slowdown",
    "hardware thermal slowdown",
    "hardware power brake",
)
POWER_CAP = "software power cap"
LEAST_THROTTLED = 0.05
LEAST_CAPPED = 0.5
# Shares of all processors that others had: below this nothing would be noticed.
MOST_OTHERS = 0.10
MOST_STEAL = 0.02
MOST_GAP = 0.1
# Memory of others on a GPU, MiB, from which they count as users of it: a desktop has less, a model more.
FOREIGN_MIB = 1024
# A pass of fewer samples is too short for shares of them.
FEWEST = 3
# A note for each would hide the rest.
MOST_DOCTOR = 8


def pass_summary(run: RunData, record: LevelRecord) -> Summary | None:
    """Return the telemetry of one pass of a level; None where the run has none."""
    if not run.telemetry or record.wall_s <= 0:
        return None
    interval = run.telemetry_header.interval_s if run.telemetry_header else 1.0
    return summarize(
        run.telemetry,
        record.t - record.wall_s,
        record.t,
        interval_s=interval,
        tokens=record.output_tokens,
    )


def level_summaries(run: RunData) -> dict[tuple[str, int], list[tuple[LevelRecord, Summary]]]:
    """Return the telemetry of every measured pass by scenario and level."""
    found: dict[tuple[str, int], list[tuple[LevelRecord, Summary]]] = {}
    for record in run.levels:
        if record.phase != "measure":
            continue
        summary = pass_summary(run, record)
        if summary is not None:
            found.setdefault((record.scenario, record.level), []).append((record, summary))
    return found


def _worst_reason(summaries: Sequence[Summary], words: Sequence[str]) -> tuple[float, int, str]:
    """Return (share, GPU, reason) of what held a GPU back most often; (0, 0, "") if nothing did."""
    return max(
        (
            (gpu.reasons.get(word, 0.0), gpu.index, word)
            for s in summaries
            if s.samples >= FEWEST
            for gpu in s.gpus
            for word in words
        ),
        default=(0.0, 0, ""),
    )


def _gpu_findings(scenario: str, level: int, summaries: Sequence[Summary]) -> Iterator[Finding]:
    where = f"{scenario} at C={level}"
    share, index, word = _worst_reason(summaries, THROTTLED)
    if share >= LEAST_THROTTLED:
        clocks = [
            g for s in summaries for g in s.gpus if g.index == index and g.sm_mhz_min is not None
        ]
        lowest = min((g.sm_mhz_min or 0 for g in clocks), default=None)
        heat = max((g.temperature_c or 0 for g in clocks), default=None)
        detail = f" (SM clock down to {lowest} MHz, {heat} °C)" if clocks else ""
        yield Finding(
            id="gpu-throttled",
            severity="warning",
            seen=f"GPU {index} slowed itself down, {word}, in {share:.0%} of a pass of {where}{detail}.",
            why="The clock decides the step time, so these numbers are lower than the card can do.",
            remedy="Look at cooling and power supply, let it cool down, and measure again.",
            scenario=scenario,
            level=level,
        )
    foreign = sorted({(g.index, pid) for s in summaries for g in s.gpus for pid in g.foreign_pids})
    if foreign:
        named = ", ".join(f"pid {pid} on GPU {index}" for index, pid in foreign[:6])
        held = max(g.foreign_mib for s in summaries for g in s.gpus)
        yield Finding(
            id="gpu-shared",
            # A desktop's few MiB do not void a run; a process with a model's worth of memory computes.
            severity="invalid" if held >= FOREIGN_MIB else "warning",
            seen=f"Another process was on the GPU during {where}: {named}, with {held} MiB.",
            why="It takes SMs, memory bandwidth and memory, at times that nobody can tell afterwards.",
            remedy="End it, or keep other users off the GPU, and measure again.",
            scenario=scenario,
            level=level,
        )


def _cpu_findings(scenario: str, level: int, summaries: Sequence[Summary]) -> Iterator[Finding]:
    where = f"{scenario} at C={level}"
    enough = [s for s in summaries if s.samples >= FEWEST]
    others = max((s.cpu_others for s in enough if s.cpu_others is not None), default=0.0)
    if others > MOST_OTHERS:
        yield Finding(
            id="cpu-shared",
            severity="warning",
            seen=f"Other processes had {others:.0%} of the processors during a pass of {where}.",
            why="Server and client wait while others compute.",
            remedy="End other work on this machine (`top` names it) and measure again.",
            scenario=scenario,
            level=level,
        )
    steal = max((s.steal for s in enough if s.steal is not None), default=0.0)
    if steal > MOST_STEAL:
        yield Finding(
            id="cpu-steal",
            severity="warning",
            seen=f"The hypervisor took {steal:.1%} of the processors' time during a pass of {where}.",
            why="Other guests of the same machine slow this one, unseen by anything in it.",
            remedy="Measure when they rest, or on dedicated processors.",
            scenario=scenario,
            level=level,
        )


def _run_findings(
    found: dict[tuple[str, int], list[tuple[LevelRecord, Summary]]],
) -> Iterator[Finding]:
    passes = [s for pairs in found.values() for _, s in pairs]
    seconds = sum(s.seconds for s in passes)
    gaps = sum(s.gap_s for s in passes)
    if seconds and gaps / seconds > MOST_GAP:
        yield Finding(
            id="telemetry-gaps",
            severity="note",
            seen=f"Telemetry has gaps of {gaps:.0f} s in {seconds:.0f} s of measuring.",
            why="What the machine did in them is not known, and joules by power leave them out.",
            remedy="A machine without a free processor, or a full disk, does that.",
        )
    share, index, _ = _worst_reason(passes, (POWER_CAP,))
    if share >= LEAST_CAPPED:
        yield Finding(
            id="gpu-power-capped",
            severity="note",
            seen=f"GPU {index} ran at its power limit for {share:.0%} of a pass.",
            why="Many cards do under full load; with another limit the numbers are others.",
            remedy="Compare with runs of the same power limit only.",
        )


def _doctor_notes(told: Sequence[dict[str, Any]], after: bool) -> Iterator[Finding]:
    for result in told[:MOST_DOCTOR]:
        when = "After the run" if after else "Before the run"
        yield Finding(
            id=f"doctor-{result.get('id', 'unknown')}",
            severity="note",
            seen=f"{when} the doctor saw: {result.get('seen', '')}.",
            why=str(result.get("why", "")),
            remedy=str(result.get("remedy", "")),
        )


def machine_findings(run: RunData) -> list[Finding]:
    """Return what telemetry and doctor found.

    Args:
        run: The run; one without telemetry or doctor gives nothing.
    """
    found = level_summaries(run)
    findings: list[Finding] = []
    for (scenario, level), pairs in found.items():
        summaries = [s for _, s in pairs]
        findings += _gpu_findings(scenario, level, summaries)
        findings += _cpu_findings(scenario, level, summaries)
    findings += _run_findings(found)
    before = {(r.get("id"), r.get("status")) for r in run.manifest.doctor}
    new = [r for r in run.manifest.doctor_after if (r.get("id"), r.get("status")) not in before]
    findings += _doctor_notes(run.manifest.doctor, after=False)
    findings += _doctor_notes(new, after=True)
    return findings
