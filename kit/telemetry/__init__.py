"""Telemetry: what the machine did while a level was measured, sampled once a second.

``RUN/telemetry.jsonl`` holds one JSON object a line: a :class:`TelemetryHeader`, then :class:`TelemetrySample`
(:mod:`kit.telemetry.records`). A run from before telemetry, or one that could not write it, has no such file.

The link to a run's levels is the clock: ``t`` is Unix time in both, and a pass (``LevelRecord``) covers
``[t - wall_s, t]``. :func:`kit.telemetry.summary.window` takes the samples of such a stretch, and
:func:`kit.telemetry.summary.summarize` its figures with joules per token; both are pure. A stretch between two
samples that is longer than :data:`kit.telemetry.records.GAP_FACTOR` intervals is a gap: it is reported, and no value
is made up for it. ``RunData.telemetry`` holds the samples, ``RunData.telemetry_header`` the header or None;
:mod:`kit.verdict.machine` turns them into findings.
"""

from __future__ import annotations

from kit.telemetry.records import GpuProcess, GpuSample, TelemetryHeader, TelemetrySample

__all__ = ["GpuProcess", "GpuSample", "TelemetryHeader", "TelemetrySample"]
