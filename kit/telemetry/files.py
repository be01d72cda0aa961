"""Read ``telemetry.jsonl``."""

from __future__ import annotations

from pathlib import Path

import orjson
from pydantic import ValidationError

from kit.telemetry.records import TelemetryHeader, TelemetrySample, line_adapter

FILE = "telemetry.jsonl"


def read_telemetry(path: Path) -> tuple[TelemetryHeader | None, list[TelemetrySample]]:
    """Return the header and the samples of a run folder, in order of time; (None, []) without a file.

    A resumed run appends a second header and goes on; the first one counts. Lines that cannot be read are left out: a
    killed writer leaves at most one, and the gap shows.
    """
    try:
        lines = (path / FILE).read_bytes().splitlines()
    except OSError:
        return None, []
    header: TelemetryHeader | None = None
    samples: list[TelemetrySample] = []
    for line in lines:
        try:
            record = line_adapter.validate_python(orjson.loads(line))
        except (ValueError, ValidationError):
            continue
        if isinstance(record, TelemetryHeader):
            header = header or record
        else:
            samples.append(record)
    return header, sorted(samples, key=lambda s: s.t)
