"""Charts of ``telemetry.jsonl``: the machine over the time of the run (format: :mod:`kit.telemetry.records`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from kit.records import RunData
from kit.report.html import axes as draw
from kit.report.html.svg import BAND, DASHES, SERIES, Chart, both, panels
from kit.telemetry.records import TelemetryHeader, TelemetrySample, line_adapter

TELEMETRY = "telemetry.jsonl"
MISSING = (
    "The run folder has no telemetry.jsonl: this run was not accompanied by samples of the machine."
)
# A run of hours has more samples than a chart has pixels: this many means are drawn.
POINTS = 240
LINE_LIMIT = 1 << 20
# Of more lines than this, as with eight GPUs, only mean and range are drawn; the table has each.
SINGLE_LINES = 3


@dataclass(frozen=True)
class Series:
    """One quantity over the run: seconds since its start, and values (NaN where there is none)."""

    name: str
    unit: str
    lines: dict[str, list[float]]


@dataclass(frozen=True)
class Telemetry:
    """What was sampled. ``unavailable`` says why a field is missing."""

    seconds: list[float]
    series: list[Series]
    unavailable: dict[str, str]


def _lines(path: Path) -> Iterator[TelemetryHeader | TelemetrySample]:
    with path.open("rb") as file:
        while raw := file.readline(LINE_LIMIT):
            try:
                yield line_adapter.validate_python(orjson.loads(raw))
            except (ValueError, ValidationError):
                # The last line of a killed run may be half a line.
                continue


def _number(value: float | None, scale: float = 1.0) -> float:
    return math.nan if value is None else value * scale


HOST: list[tuple[str, str, list[tuple[str, Callable[[TelemetrySample], float | None], float]]]] = [
    (
        "processors",
        "% busy",
        [
            ("all", lambda s: s.cpu, 100),
            ("kit and server", lambda s: s.cpu_ours, 100),
            ("stolen by others", lambda s: s.steal, 100),
        ],
    ),
    ("processor clock", "MHz", [("mean", lambda s: s.cpu_mhz, 1)]),
    ("server memory", "GiB", [("server", lambda s: s.server_rss_mib, 1 / 1024)]),
]
GPU: list[tuple[str, str, str, float]] = [
    ("GPU power", "W", "power_w", 1),
    ("GPU clock", "MHz", "sm_mhz", 1),
    ("GPU temperature", "°C", "temperature_c", 1),
    ("GPU busy", "%", "utilisation", 100),
    ("GPU memory", "GiB", "memory_used_mib", 1 / 1024),
]


def read_telemetry(path: Path) -> Telemetry | None:
    """Read a run's telemetry; None if there is none, or no sample in it."""
    if not path.is_file():
        return None
    header: TelemetryHeader | None = None
    samples: list[TelemetrySample] = []
    for line in _lines(path):
        if isinstance(line, TelemetryHeader):
            header = header or line
        else:
            samples.append(line)
    if not samples:
        return None
    series = [
        Series(
            name,
            unit,
            {label: [_number(get(s), scale) for s in samples] for label, get, scale in of},
        )
        for name, unit, of in HOST
    ]
    indices = sorted({g.index for s in samples for g in s.gpus})
    for name, unit, field, scale in GPU:
        lines = {
            f"GPU {i}": [
                next((_number(getattr(g, field), scale) for g in s.gpus if g.index == i), math.nan)
                for s in samples
            ]
            for i in indices
        }
        series.append(Series(name, unit, lines))
    start = header.t if header else samples[0].t
    return Telemetry(
        [s.t - start for s in samples],
        [kept for s in series if (kept := _known(s)).lines],
        header.unavailable if header else {},
    )


def _known(series: Series) -> Series:
    """Return a series without the lines that have no value at all."""
    lines = {n: values for n, values in series.lines.items() if not all(map(math.isnan, values))}
    return Series(series.name, series.unit, lines)


def thin(x: list[float], y: list[float]) -> tuple[list[float], list[float]]:
    """Return at most ``POINTS`` means of neighbouring samples."""
    step = max(1, -(-len(x) // POINTS))
    xs, ys = [], []
    for i in range(0, len(x), step):
        known = [v for v in y[i : i + step] if not math.isnan(v)]
        xs.append(sum(x[i : i + step]) / len(x[i : i + step]))
        ys.append(sum(known) / len(known) if known else math.nan)
    return xs, ys


def telemetry_chart(run: RunData, telemetry: Telemetry) -> Chart | None:
    """Draw the machine over time, with the launches of the servers shaded in turn."""
    if not telemetry.series:
        return None
    longest = telemetry.seconds[-1]
    unit, per = ("min", 60.0) if longest > 300 else ("s", 1.0)
    begin = min([r.t for r in run.launches], default=0.0)
    spans = _spans(run)

    def figure(width: int) -> Any:
        fig, axs = panels(width, len(telemetry.series), 200)
        for ax, series in zip(axs, telemetry.series, strict=True):
            for i, (start, end) in enumerate(spans):
                if i % 2:
                    ax.axvspan((start - begin) / per, (end - begin) / per, color=BAND, linewidth=0)
            if len(series.lines) > SINGLE_LINES:
                _draw_range(ax, telemetry.seconds, series, per)
            else:
                for i, (label, values) in enumerate(series.lines.items()):
                    x, y = thin(telemetry.seconds, values)
                    ax.plot(
                        [v / per for v in x],
                        y,
                        color=SERIES[i % len(SERIES)],
                        linestyle=DASHES[i % len(DASHES)],
                        linewidth=1.4,
                        label=label,
                    )
            ax.set_title(f"{series.name}, {series.unit}")
            ax.set_xlabel(f"time, {unit}")
            draw.zero_based(ax)
            draw.calm(ax)
            if len(series.lines) > 1:
                entries = min(len(series.lines), SINGLE_LINES)
                # Room for the legend above the highest line.
                ax.set_ylim(top=ax.get_ylim()[1] * (1 + 0.16 * entries))
                ax.legend(loc="upper left", fontsize=10, borderaxespad=0.1, labelspacing=0.3)
        return fig

    rows = []
    for series in telemetry.series:
        for label, values in series.lines.items():
            known = sorted(v for v in values if not math.isnan(v))
            middle = known[len(known) // 2]
            rows.append(
                [
                    series.name,
                    label,
                    series.unit,
                    *(f"{v:.1f}" for v in (known[0], middle, known[-1])),
                ]
            )
    title = "The machine over time"
    alt = "Telemetry over the run, medians: " + "; ".join(
        f"{row[0]} {row[1]} {row[4]} {row[2]}" for row in rows
    )
    return Chart(
        "telemetry",
        title,
        alt,
        "Sampled beside the run; every second server launch is shaded.",
        *both(figure, "telemetry", title, alt),
        ["quantity", "of", "unit", "least", "median", "most"],
        rows,
    )


def _draw_range(ax: Any, seconds: list[float], series: Series, per: float) -> None:
    """Draw many lines as their mean within the band from the least to the most."""
    thinned = [thin(seconds, values)[1] for values in series.lines.values()]
    x = [v / per for v in thin(seconds, next(iter(series.lines.values())))[0]]
    at = [[v for v in column if not math.isnan(v)] for column in zip(*thinned, strict=True)]
    nan = math.nan
    low, high = [min(c, default=nan) for c in at], [max(c, default=nan) for c in at]
    ax.fill_between(x, low, high, color=SERIES[2], alpha=0.25, linewidth=0, label="least to most")
    mean = [sum(c) / len(c) if c else nan for c in at]
    ax.plot(x, mean, color=SERIES[2], linewidth=1.4, label=f"mean of {len(series.lines)}")


def _spans(run: RunData) -> list[tuple[float, float]]:
    """Return start and end (Unix time) of what each server launch measured."""
    found: dict[tuple[str, int], list[float]] = {}
    for launch in run.launches:
        found[launch.scenario, launch.launch] = [launch.t]
    for record in run.levels:
        if (record.scenario, record.launch) in found:
            found[record.scenario, record.launch].append(record.t)
    return [(min(times), max(times)) for times in found.values()]
