"""The page that compares two runs."""

from __future__ import annotations

import shlex
from typing import Any

from kit.records import RunData
from kit.report.html import axes as draw
from kit.report.html.judged import by_scenario
from kit.report.html.page import environment
from kit.report.html.svg import BAND, MARKERS, SERIES, Chart, both, drawing, panels
from kit.report.text import interval
from kit.verdict import judge
from kit.verdict.compare import Comparison, LevelChange

MEANING = {
    "NOT WORSE": "No level of the second run is slower than in the first by more than chance and tolerance.",
    "WORSE": "The second run is slower than the first by more than chance and tolerance explain.",
    "INVALID": "A run whose numbers mean nothing cannot be compared.",
    "INCONCLUSIVE": "The runs are too noisy, or too short, to tell them apart or to call them the same.",
    "NOTHING IN COMMON": "The runs share no scenario and level that sent the same requests.",
}
WORDS = {"REPRODUCED": "same"}


def ratio_chart(comparison: Comparison) -> Chart | None:
    """Draw the throughput of B over A at each level, with the tolerance; None without a common level."""
    found: dict[str, list[LevelChange]] = {}
    for change in sorted(comparison.levels, key=lambda c: c.level):
        found.setdefault(change.scenario, []).append(change)
    if not found:
        return None
    series = draw.series_of(list(found))

    def figure(width: int) -> Any:
        fig, axs = panels(width, len(found), 240, sharey=True)
        for ax, (name, changes) in zip(axs, found.items(), strict=True):
            draw.reference_line(ax, 1.0)
            for i, c in enumerate(changes):
                ax.fill_between(
                    [i - 0.4, i + 0.4], 1 - c.tolerance, 1 + c.tolerance, color=BAND, linewidth=0
                )
                if c.ratio.low is not None and c.ratio.high is not None:
                    ax.plot([i, i], [c.ratio.low, c.ratio.high], color=SERIES[series[name]])
            ax.plot(
                range(len(changes)),
                [c.ratio.value for c in changes],
                color=SERIES[series[name]],
                marker=MARKERS[series[name]],
                linestyle="none",
                ms=8,
            )
            ax.set_xticks(range(len(changes)), [str(c.level) for c in changes])
            ax.set_xlim(-0.6, len(changes) - 0.4)
            ax.set_xlabel("concurrency C")
            ax.set_title(draw.plain(name))
            draw.calm(ax)
        axs[0].set_ylabel("throughput, B / A")
        return fig

    title = "B over A"
    alt = "Throughput of B over that of A. " + "; ".join(
        f"{c.scenario} at C={c.level} {interval(c.ratio)}" for c in comparison.levels
    )
    rows = [
        [
            c.scenario,
            str(c.level),
            interval(c.ratio, 3),
            f"±{c.tolerance:.0%}",
            WORDS.get(c.status, c.status),
        ]
        for c in comparison.levels
    ]
    return Chart(
        "ratio",
        title,
        alt,
        "1 is no difference; the shaded band is the tolerance, bars are 95 % intervals.",
        *both(figure, "ratio", title, alt),
        ["scenario", "C", "B / A [95 % CI]", "tolerance", "status"],
        rows,
    )


def throughput_chart(a: RunData, b: RunData) -> Chart | None:
    """Draw both runs' throughput over C; None if neither has any."""
    runs = {"A": by_scenario(judge(a, None)), "B": by_scenario(judge(b, None))}
    names = list(dict.fromkeys(name for found in runs.values() for name in found))
    if not names:
        return None
    levels = sorted({v.level for f in runs.values() for judged in f.values() for v in judged})

    def figure(width: int) -> Any:
        fig, axs = panels(width, len(names), 260, sharey=True)
        for ax, name in zip(axs, names, strict=True):
            for run, found in runs.items():
                judged = found.get(name, [])
                # One colour a scenario would hide which run is which.
                draw.line(
                    ax,
                    0 if run == "A" else 2,
                    [v.level for v in judged],
                    [v.tok_s.value for v in judged],
                    low=[v.tok_s.low for v in judged],
                    high=[v.tok_s.high for v in judged],
                    label=run,
                )
            draw.concurrency_axis(ax, levels)
            ax.set_title(draw.plain(name))
        for ax in axs:
            draw.zero_based(ax)
        axs[0].set_ylabel("output tokens per second")
        draw.legend(fig, axs[:1], width)
        return fig

    rows = [
        [name, str(v.level), run, interval(v.tok_s, 1)]
        for name in names
        for run, found in runs.items()
        for v in found.get(name, [])
    ]
    title = "Throughput of both"
    alt = "Throughput over concurrency. " + "; ".join(
        f"{row[0]} at C={row[1]}, run {row[2]}: {row[3]}" for row in rows
    )
    return Chart(
        "throughput",
        title,
        alt,
        "Output tokens per second; bands are 95 % intervals over server launches.",
        *both(figure, "throughput", title, alt),
        ["scenario", "C", "run", "tok/s [95 % CI]"],
        rows,
    )


def render_comparison(a: RunData, b: RunData, comparison: Comparison) -> str:
    """Return the comparison of two runs as HTML."""
    with drawing():
        charts = [c for c in (ratio_chart(comparison), throughput_chart(a, b)) if c]
    context = {
        "title": f"{comparison.status}: {comparison.run_b} against {comparison.run_a}",
        "comparison": comparison,
        "headline": comparison.lines()[-1].removeprefix(comparison.status).strip(),
        "meaning": MEANING[comparison.status],
        "charts": charts,
        "command": shlex.join(
            ["kit", "compare", f"runs/{comparison.run_a}", f"runs/{comparison.run_b}"]
        ),
    }
    return environment().get_template("compare.html.j2").render(context)
