"""Pieces of charts: the concurrency axis, lines with their interval, legends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kit.report.html.svg import DASHES, GRID, MARKERS, MUTED, SERIES, WIDE

# A level's number with air around it.
NAME_PX = 27
# The published scenarios keep their colour in every report; others take the next free one.
FIXED = {"baseline": 0, "spec-v1": 1, "spec-v2": 2}


def series_of(scenarios: Sequence[str]) -> dict[str, int]:
    """Return a number for each scenario: its colour, marker and dash pattern."""
    taken = dict(FIXED)
    for name in scenarios:
        if name not in taken:
            taken[name] = max(taken.values()) + 1
    return {name: taken[name] % len(SERIES) for name in scenarios}


def plain(text: str) -> str:
    """Return text that matplotlib draws as it is: a dollar sign would start mathematics."""
    return text.replace("$", r"\$")


def concurrency_axis(ax: Any, levels: Sequence[int], *, label: bool = True) -> None:
    """Make the x axis logarithmic with a tick at each measured level."""
    ax.set_xscale("log", base=2)
    low, high = min(levels), max(levels)
    ax.set_xlim(low / 1.25, high * 1.25)
    ax.minorticks_off()
    # Neighbouring names need room: of levels closer than that the later one goes unnamed.
    columns = ax.get_subplotspec().get_gridspec().ncols
    room = ax.figure.get_figwidth() * 72 / columns * 0.8
    octaves = math.log2(high / low * 1.25**2)
    shown: list[int] = []
    for level in sorted(levels):
        if not shown or math.log2(level / shown[-1]) / octaves * room >= NAME_PX:
            shown.append(level)
    ax.set_xticks(shown, [str(level) for level in shown])
    if label:
        ax.set_xlabel("concurrency C")


def line(
    ax: Any,
    series: int,
    x: Sequence[float],
    y: Sequence[float | None],
    *,
    low: Sequence[float | None] | None = None,
    high: Sequence[float | None] | None = None,
    label: str | None = None,
) -> None:
    """Draw one series with its interval as a band; missing values leave a gap."""
    nan = float("nan")
    colour = SERIES[series]
    values = [nan if v is None else v for v in y]
    if low is not None and high is not None:
        below = [nan if v is None else v for v in low]
        above = [nan if v is None else v for v in high]
        ax.fill_between(x, below, above, color=colour, alpha=0.16, linewidth=0)
        known = [(a, v, b, t) for a, v, b, t in zip(x, values, below, above, strict=True) if b == b]
        if known:
            xs, vs, bs, ts = zip(*known, strict=True)
            error = [
                [v - b for v, b in zip(vs, bs, strict=True)],
                [t - v for v, t in zip(vs, ts, strict=True)],
            ]
            ax.errorbar(xs, vs, yerr=error, fmt="none", ecolor=colour, elinewidth=1.2, capsize=3)
    ax.plot(
        x,
        values,
        color=colour,
        marker=MARKERS[series],
        linestyle=DASHES[series],
        label=None if label is None else plain(label),
    )


def legend(fig: Any, axes: Sequence[Any], width: int) -> None:
    """Put one legend for all axes above them, in as many columns as there is room for."""
    handles: dict[str, Any] = {}
    for ax in axes:
        for handle, name in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    if handles:
        longest = max(map(len, handles))
        room = max(1, int(width / (52 + 7.0 * longest)))
        fig.legend(
            list(handles.values()),
            list(handles),
            loc="outside upper left",
            ncols=min(len(handles), room),
            borderaxespad=0.2,
        )


def reference_line(ax: Any, y: float) -> None:
    """Draw a thin horizontal line."""
    ax.axhline(y, color=MUTED, linewidth=1)


def reference_line_vertical(ax: Any, x: float) -> None:
    """Draw a thin vertical line."""
    ax.axvline(x, color=MUTED, linewidth=1)


def zero_based(ax: Any) -> None:
    """Start the y axis at 0: lengths are compared."""
    ax.margins(y=0.08)
    ax.autoscale_view(scalex=False)
    ax.set_ylim(bottom=0)


def calm(ax: Any) -> None:
    """Keep horizontal grid lines only."""
    ax.grid(visible=False, axis="x")
    ax.grid(visible=True, axis="y", color=GRID)


def is_wide(width: int) -> bool:
    """Return whether this is the drawing for wide screens."""
    return width == WIDE
