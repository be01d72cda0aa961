"""Joules per output token of each scenario and level, from telemetry. Pure.

They decide nothing: golden files hold none. What the joules leave out is told beside them.
"""

from __future__ import annotations

from kit.records import RunData
from kit.verdict.machine import level_summaries
from kit.verdict.model import LevelEnergy

# Rounding of the times of samples and passes, s: less than this is no gap.
LEAST_GAP_S = 0.01


def level_energies(run: RunData) -> list[LevelEnergy]:
    """Return the energy of each scenario and level whose passes have joules, in the order of the levels measured.

    A pass with failed requests, without tokens or without joules is left out, and counted in ``passes_without``.
    """
    found = []
    for (scenario, level), pairs in level_summaries(run).items():
        good = [
            s for r, s in pairs if s.joules is not None and r.output_tokens > 0 and not r.failed
        ]
        if not good:
            continue
        joules = sum(s.joules or 0.0 for s in good)
        tokens = sum(s.tokens or 0 for s in good)
        gap = sum(s.joules_gap_s for s in good)
        found.append(
            LevelEnergy(
                scenario=scenario,
                level=level,
                passes=len(good),
                passes_without=len(pairs) - len(good),
                seconds=sum(s.seconds for s in good),
                joules=joules,
                tokens=tokens,
                joules_per_token=joules / tokens,
                gap_s=gap if gap >= LEAST_GAP_S else 0.0,
                source=", ".join(dict.fromkeys(s.joules_of for s in good)),
            )
        )
    return found


def why_none(run: RunData) -> str:
    """Return why a run has no joules at all."""
    if not run.telemetry:
        return "the run has no telemetry"
    told = run.telemetry_header.unavailable if run.telemetry_header else {}
    if told.get("gpus"):
        cpu = told.get("cpu_energy_uj", "the processors' energy counter does not span a pass")
        return f"{told['gpus']}; {cpu}"
    return "the GPUs told neither energy nor power during a pass"
