"""Charts of what was measured, pass by pass: latency and the spread of sweeps and launches."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from kit.records import LevelRecord, RunData
from kit.report.html import axes as draw
from kit.report.html.judged import number
from kit.report.html.svg import INK, MARKERS, SERIES, Chart, both, panels

PERCENTILES = ("p50", "p90", "p99")
TIMES = (
    ("latency_s", "latency", "Time of a whole request."),
    ("ttft_s", "time to first token", "Time to the first token, as the client saw it."),
    ("itl_s", "inter-token latency", "Time between tokens, as the client saw them."),
)


def _mean(records: list[LevelRecord], table: str, percentile: str) -> float | None:
    values = [getattr(r, table).get(percentile) for r in records if not r.failed]
    known = [v for v in values if v is not None]
    return fmean(known) if known else None


def latency_charts(run: RunData) -> list[Chart]:
    """Draw percentiles of latency over C, and those of first tokens and gaps where answers were streamed."""
    charts = []
    for table, name, note in TIMES:
        found = _percentiles(run, table)
        if found:
            charts.append(_latency_chart(run, found, table.removesuffix("_s"), name, note))
    return charts


def _percentiles(run: RunData, table: str) -> dict[str, dict[int, list[float | None]]]:
    """Return the mean of each percentile over passes, by scenario and level; empty where none was measured."""
    found: dict[str, dict[int, list[float | None]]] = {}
    for scenario in run.scenarios():
        for level in run.manifest.plan.levels:
            row = [_mean(run.measured(scenario, level), table, p) for p in PERCENTILES]
            if any(v is not None for v in row):
                found.setdefault(scenario, {})[level] = row
    return found


def _latency_chart(
    run: RunData,
    found: dict[str, dict[int, list[float | None]]],
    name_id: str,
    name: str,
    note: str,
) -> Chart:
    series = draw.series_of(run.manifest.plan.scenarios)
    levels = sorted({level for table in found.values() for level in table})
    top = max(v for table in found.values() for row in table.values() for v in row if v is not None)
    unit, scale, digits = ("s", 1.0, 2) if top >= 1 else ("ms", 1e3, 1)

    def figure(width: int) -> Any:
        fig, axs = panels(width, len(PERCENTILES), 240, sharey=True)
        for i, (ax, percentile) in enumerate(zip(axs, PERCENTILES, strict=True)):
            for scenario, table in found.items():
                values = [None if row[i] is None else row[i] * scale for row in table.values()]  # type: ignore[operator]
                draw.line(ax, series[scenario], list(table), values, label=scenario)
            draw.concurrency_axis(ax, levels)
            ax.set_title(percentile)
        for ax in axs:
            draw.zero_based(ax)
        axs[0].set_ylabel(f"{name}, {unit}")
        draw.legend(fig, axs[:1], width)
        return fig

    title = name.capitalize()
    alt = f"{title} percentiles over concurrency. " + "; ".join(
        f"{scenario} p99: "
        + ", ".join(f"{number(row[2], 3)} s at C={level}" for level, row in table.items())
        for scenario, table in found.items()
    )
    rows = [
        [
            scenario,
            str(level),
            *(number(None if v is None else v * scale, digits) for v in row),
        ]
        for scenario, table in found.items()
        for level, row in table.items()
    ]
    return Chart(
        name_id,
        title,
        alt,
        f"{note} Percentiles of each pass, their mean over passes.",
        *both(figure, name_id, title, alt),
        ["scenario", "C", *(f"{p}, {unit}" for p in PERCENTILES)],
        rows,
    )


def spread_chart(run: RunData) -> Chart | None:
    """Draw each pass's throughput relative to the mean of its level, launches side by side."""
    found: dict[str, dict[int, list[list[LevelRecord]]]] = {}
    for scenario in run.scenarios():
        for level in run.manifest.plan.levels:
            groups = [
                good
                for group in run.grouped(scenario, level)
                if (good := [r for r in group if not r.failed and r.tok_s > 0])
            ]
            if groups:
                found.setdefault(scenario, {})[level] = groups
    if not found:
        return None
    launches = sorted(
        {r.launch for t in found.values() for gs in t.values() for g in gs for r in g}
    )

    def figure(width: int) -> Any:
        fig, axs = panels(width, len(found), 240, sharey=True)
        for ax, (scenario, table) in zip(axs, found.items(), strict=True):
            draw.reference_line(ax, 0.0)
            for at, groups in enumerate(table.values()):
                mean = fmean(r.tok_s for g in groups for r in g)
                for group in groups:
                    place = launches.index(group[0].launch)
                    x = at + (place - (len(launches) - 1) / 2) * 0.7 / max(len(launches), 2)
                    values = [(r.tok_s / mean - 1) * 100 for r in group]
                    series = place % len(SERIES)
                    ax.plot(
                        [x] * len(values),
                        values,
                        linestyle="none",
                        marker=MARKERS[series],
                        color=SERIES[series],
                        alpha=0.75,
                    )
                    middle = fmean(values)
                    ax.plot([x - 0.1, x + 0.1], [middle, middle], color=INK, linewidth=1.6)
            ax.set_xticks(range(len(table)), [str(level) for level in table])
            ax.set_xlim(-0.6, len(table) - 0.4)
            ax.set_xlabel("concurrency C")
            ax.set_title(draw.plain(scenario))
            draw.calm(ax)
        axs[0].set_ylabel("% from the level's mean")
        for launch in launches:
            series = launches.index(launch) % len(SERIES)
            axs[0].plot(
                [],
                [],
                linestyle="none",
                marker=MARKERS[series],
                color=SERIES[series],
                label=f"launch {launch + 1}",
            )
        draw.legend(fig, axs[:1], width)
        return fig

    rows = []
    worst = 0.0
    for scenario, table in found.items():
        for level, groups in table.items():
            mean = fmean(r.tok_s for g in groups for r in g)
            for group in groups:
                values = [r.tok_s for r in group]
                worst = max(worst, *(abs(v / mean - 1) for v in values))
                rows.append(
                    [
                        scenario,
                        str(level),
                        str(group[0].launch + 1),
                        ", ".join(f"{v:.1f}" for v in values),
                        f"{(fmean(values) / mean - 1) * 100:+.1f} %",
                    ]
                )
    title = "Spread of sweeps and launches"
    alt = f"Each pass against the mean of its level, by launch; the farthest pass is {worst:.1%} away."
    return Chart(
        "spread",
        title,
        alt,
        "Each mark is one pass, each bar the mean of a server launch. What differs between launches and not "
        "within them is the reason why several are made.",
        *both(figure, "spread", title, alt),
        ["scenario", "C", "launch", "tok/s of its passes", "launch mean"],
        rows,
    )
