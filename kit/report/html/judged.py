"""Charts of the judged levels: throughput, ratio to golden, acceptance, the three factors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kit.golden import Golden
from kit.report.html import axes as draw
from kit.report.html.svg import BAND, INK, MARKERS, MUTED, SERIES, SURFACE, Chart, both, panels
from kit.report.text import interval
from kit.verdict.model import LevelVerdict, Verdict

By = dict[str, list[LevelVerdict]]


def by_scenario(verdict: Verdict) -> By:
    """Return the judged levels by scenario, each in the order of C."""
    found: By = {}
    for level in verdict.levels:
        found.setdefault(level.scenario, []).append(level)
    return {name: sorted(levels, key=lambda v: v.level) for name, levels in found.items()}


def all_levels(verdict: Verdict) -> list[int]:
    """Return every measured concurrency, ascending."""
    return sorted({v.level for v in verdict.levels})


def number(value: float | None, digits: int = 2) -> str:
    """Return a number, or a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


def _golden_points(golden: Golden | None, scenario: str) -> list[tuple[int, float]]:
    table = golden.throughput.get(scenario, {}) if golden else {}
    return sorted((level, reference.value) for level, reference in table.items())


def throughput_chart(verdict: Verdict, golden: Golden | None) -> Chart:
    """Draw throughput over C with intervals, golden's marks, and the region of replicates."""
    found = by_scenario(verdict)
    series = draw.series_of(list(found))
    levels = all_levels(verdict)
    replicates = [v.level for v in verdict.levels if v.replicate]
    shown = {
        s: [p for p in _golden_points(golden, s) if min(levels) <= p[0] <= max(levels)]
        for s in found
    }

    def figure(width: int) -> Any:
        fig, (ax,) = panels(width, 1, 400 if draw.is_wide(width) else 320)
        if replicates:
            first = (
                max(v for v in levels if v < min(replicates)) if levels[0] < min(replicates) else 1
            )
            ax.axvspan(first * 1.12, max(levels) * 1.25, color=BAND, linewidth=0)
            ax.text(
                max(levels) * 1.2,
                0.02,
                "replicates",
                ha="right",
                transform=ax.get_xaxis_transform(),
            )
        for name, judged in found.items():
            draw.line(
                ax,
                series[name],
                [v.level for v in judged],
                [v.tok_s.value for v in judged],
                low=[v.tok_s.low for v in judged],
                high=[v.tok_s.high for v in judged],
                label=name,
            )
            if shown[name]:
                x, y = zip(*shown[name], strict=True)
                ax.plot(
                    x,
                    y,
                    linestyle="none",
                    marker="D",
                    markersize=9,
                    markerfacecolor="none",
                    markeredgecolor=SERIES[series[name]],
                    markeredgewidth=1.5,
                    zorder=1.5,
                )
        if any(shown.values()):
            ax.plot(
                [],
                [],
                linestyle="none",
                marker="D",
                markersize=9,
                markerfacecolor="none",
                markeredgecolor=INK,
                label="golden",
            )
        draw.concurrency_axis(ax, levels)
        draw.zero_based(ax)
        ax.set_ylabel("output tokens per second")
        draw.legend(fig, [ax], width)
        return fig

    title = "Throughput"
    alt = "Throughput over concurrency. " + _spoken(found, lambda v: f"{v.tok_s.value:.0f} tok/s")
    note = "Output tokens per second of the whole level; bands are 95 % intervals over server launches."
    if any(shown.values()) and golden:
        note += f" Diamonds are golden's figures ({golden.source})."
    if replicates:
        note += (
            " Shaded: 30 requests a level, so at most 30 are in flight; these levels repeat one experiment"
            " and do not count again."
        )
    rows = [
        [
            v.scenario,
            f"{v.level}{' (replicate)' if v.replicate else ''}",
            interval(v.tok_s, 1),
            number(v.reference, 1),
            f"{v.launches} × {v.passes / v.launches:g}",
        ]
        for judged in found.values()
        for v in judged
    ]
    columns = ["scenario", "C", "tok/s [95 % CI]", "golden tok/s", "launches × sweeps"]
    return Chart(
        "throughput", title, alt, note, *both(figure, "throughput", title, alt), columns, rows
    )


def _spoken(found: By, text: Callable[[LevelVerdict], str]) -> str:
    return "; ".join(
        f"{name}: " + ", ".join(f"{text(v)} at C={v.level}" for v in judged)
        for name, judged in found.items()
    )


def ratio_chart(verdict: Verdict) -> Chart | None:
    """Draw each level's ratio to golden with the tolerance band; None without a reference."""
    found = {
        name: with_ratio
        for name, judged in by_scenario(verdict).items()
        if (with_ratio := [v for v in judged if v.ratio])
    }
    if not found:
        return None
    series = draw.series_of(list(found))

    def figure(width: int) -> Any:
        fig, axs = panels(width, len(found), 240, sharey=True)
        for ax, (name, judged) in zip(axs, found.items(), strict=True):
            ratios = [v.ratio for v in judged if v.ratio]
            x = range(len(judged))
            for i, v in enumerate(judged):
                half = v.tolerance or 0.0
                ax.fill_between([i - 0.4, i + 0.4], 1 - half, 1 + half, color=BAND, linewidth=0)
            draw.reference_line(ax, 1.0)
            colour = SERIES[series[name]]
            for i, ratio in enumerate(ratios):
                if ratio.low is not None and ratio.high is not None:
                    ax.plot([i, i], [ratio.low, ratio.high], color=colour, linewidth=2)
            values = [r.value for r in ratios]
            ax.plot(x, values, color=colour, marker=MARKERS[series[name]], linestyle="none", ms=8)
            ax.set_xticks(list(x), [str(v.level) for v in judged])
            ax.set_xlim(-0.6, len(judged) - 0.4)
            ax.set_xlabel("concurrency C")
            ax.set_title(draw.plain(name))
            draw.calm(ax)
        axs[0].set_ylabel("ratio to golden")
        return fig

    title = "Ratio to golden"
    alt = "Throughput over golden's, 1 is the same. " + _spoken(
        found, lambda v: v.ratio.text() if v.ratio else ""
    )
    rows = [
        [v.scenario, str(v.level), interval(v.ratio, 3), f"±{v.tolerance or 0:.0%}", v.status]
        for judged in found.values()
        for v in judged
    ]
    note = (
        "1 is golden's figure; the shaded band is the tolerance, which is wider where the noise is."
    )
    if verdict.decided_by == "claims":
        note += " On this rig absolute throughput is only reported: the claims decide."
    return Chart(
        "ratio",
        title,
        alt,
        note,
        *both(figure, "ratio", title, alt),
        ["scenario", "C", "ratio [95 % CI]", "tolerance", "status"],
        rows,
    )


def acceptance_chart(verdict: Verdict) -> Chart | None:
    """Draw accept length over C beside theory and plan; None without speculation."""
    found = {
        name: with_length
        for name, judged in by_scenario(verdict).items()
        if (with_length := [v for v in judged if v.accept_length is not None])
    }
    if not found:
        return None
    series = draw.series_of(list(found))
    levels = sorted({v.level for judged in found.values() for v in judged})
    known = any(v.expected_accept_length for judged in found.values() for v in judged)

    def figure(width: int) -> Any:
        fig, (ax,) = panels(width, 1, 300)
        for name, judged in found.items():
            colour = SERIES[series[name]]
            x = [v.level for v in judged]
            expected = judged[0].expected_accept_length
            if expected:
                ax.axhline(
                    expected,
                    color=colour,
                    linewidth=1.2,
                    linestyle=(0, (1, 2)),
                    label=f"theory for {draw.plain(name)}: {expected:.2f}",
                )
            planned = [v.planned_accept_length for v in judged]
            if any(planned):
                ax.plot(
                    x,
                    [float("nan") if v is None else v for v in planned],
                    linestyle="none",
                    marker="o",
                    markersize=13,
                    markerfacecolor=SURFACE,
                    markeredgecolor=MUTED,
                )
            draw.line(ax, series[name], x, [v.accept_length for v in judged], label=name)
        draw.concurrency_axis(ax, levels)
        tallest = max(
            v or 0.0
            for judged in found.values()
            for one in judged
            for v in (one.accept_length, one.expected_accept_length)
        )
        ax.set_ylim(1, tallest * 1.08)
        ax.set_ylabel("tokens per verify step")
        draw.legend(fig, [ax], width)
        return fig

    title = "Accept length"
    alt = "Accept length over concurrency. " + _spoken(
        found,
        lambda v: f"{v.accept_length or 0:.2f} (theory {number(v.expected_accept_length)})",
    )
    note = "Tokens produced per verify step, the target's own token included."
    if known:
        note += (
            " The pair is planted: circles are what these very prompts must give, dotted lines the expectation"
            " over all prompts. A deviation is a bug, not noise."
        )
    rows = [
        [
            v.scenario,
            str(v.level),
            number(v.accept_length, 3),
            number(v.planned_accept_length, 3),
            number(v.expected_accept_length, 3),
        ]
        for judged in found.values()
        for v in judged
    ]
    return Chart(
        "acceptance",
        title,
        alt,
        note,
        *both(figure, "acceptance", title, alt),
        ["scenario", "C", "measured", "planned", "theory"],
        rows,
    )


FACTORS: Sequence[tuple[str, Callable[[LevelVerdict], float | None]]] = (
    ("requests in flight", lambda v: v.effective_concurrency),
    ("tokens per step", lambda v: v.accept_length or 1.0),
    ("step time, ms", lambda v: None if v.step_time_s is None else v.step_time_s * 1e3),
)


def factors_chart(verdict: Verdict) -> Chart:
    """Draw the three factors of throughput over C."""
    found = by_scenario(verdict)
    series = draw.series_of(list(found))
    levels = all_levels(verdict)

    def figure(width: int) -> Any:
        fig, axs = panels(width, 3, 250)
        for ax, (name, get) in zip(axs, FACTORS, strict=True):
            for scenario, judged in found.items():
                draw.line(
                    ax,
                    series[scenario],
                    [v.level for v in judged],
                    [get(v) for v in judged],
                    label=scenario,
                )
            draw.concurrency_axis(ax, levels)
            draw.zero_based(ax)
            ax.set_title(name)
        draw.legend(fig, axs[:1], width)
        return fig

    title = "Why: throughput taken apart"
    alt = "The three factors of throughput over concurrency. " + _spoken(
        found, lambda v: ", ".join(f"{name} {number(get(v))}" for name, get in FACTORS)
    )
    rows = [
        [
            v.scenario,
            str(v.level),
            *(number(get(v)) for _, get in FACTORS),
            number(v.tok_s.value, 1),
        ]
        for judged in found.values()
        for v in judged
    ]
    return Chart(
        "factors",
        title,
        alt,
        "Throughput = requests in flight × tokens per step ÷ step time. A difference in throughput is a "
        "difference in at least one of them.",
        *both(figure, "factors", title, alt),
        ["scenario", "C", *(name for name, _ in FACTORS), "tok/s"],
        rows,
    )
