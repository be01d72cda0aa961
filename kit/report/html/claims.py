"""The chart of the claims: ratios with their intervals beside their bounds."""

from __future__ import annotations

from typing import Any

from kit.report.html import axes as draw
from kit.report.html.svg import INK, SERIES, SURFACE, Chart, both, panels
from kit.report.text import interval
from kit.verdict.model import ClaimVerdict, Verdict


def claims_chart(verdict: Verdict) -> Chart | None:
    """Draw the ratio of each claim with its interval beside its bound; None if none was measured."""
    points = [p for claim in verdict.claims for p in _claim_points(claim)]
    if not points:
        return None
    labels = [f"{claim.numerator} / {claim.denominator}, {where}" for claim, where, _ in points]
    ratios = [ratio for _, _, ratio in points]

    def figure(width: int) -> Any:
        wide = draw.is_wide(width)
        fig, (ax,) = panels(width, 1, 64 + (30 if wide else 48) * len(points))
        draw.reference_line_vertical(ax, 1.0)
        for y, (claim, _, ratio) in enumerate(points):
            for bound, side in ((claim.at_least, 1), (claim.at_most, -1)):
                if bound is not None:
                    ax.plot([bound], [y], marker="|", markersize=12, color=INK, markeredgewidth=2)
                    ax.annotate(
                        "",
                        xy=(bound, y),
                        xytext=(18 * side, 0),
                        textcoords="offset points",
                        arrowprops={"arrowstyle": "<|-", "color": INK, "shrinkA": 0, "shrinkB": 0},
                    )
            colour = SERIES[draw.series_of([claim.numerator])[claim.numerator]]
            if ratio.low is not None and ratio.high is not None:
                ax.plot([ratio.low, ratio.high], [y, y], color=colour, linewidth=4, alpha=0.45)
            ax.plot([ratio.value], [y], marker="o", markersize=8, color=colour)
        ax.set_ylim(len(points) - 0.4, -0.7)
        ax.grid(visible=False, axis="y")
        ax.spines["left"].set_visible(False)
        ax.tick_params(axis="y", length=0)
        ax.set_xlabel("ratio of throughputs")
        if wide:
            ax.set_yticks(range(len(points)), [draw.plain(text) for text in labels])
        else:
            ax.set_yticks([])
            for y, text in enumerate(labels):
                ax.text(
                    0,
                    y - 0.24,
                    draw.plain(text),
                    transform=ax.get_yaxis_transform(),
                    va="bottom",
                    bbox={"facecolor": SURFACE, "edgecolor": "none", "pad": 1},
                )
        low = min([0.9, *(r.low if r.low is not None else r.value for r in ratios)])
        high = max([1.1, *(r.high if r.high is not None else r.value for r in ratios)])
        bounds = [b for c, _, _ in points for b in (c.at_least, c.at_most) if b is not None]
        ax.set_xlim(min(low, *bounds) * 0.95, max(high, *bounds) * 1.05)
        return fig

    title = "Claims"
    alt = "Ratio of throughputs with its interval: " + "; ".join(
        f"{label} {interval(ratio)}" for label, ratio in zip(labels, ratios, strict=True)
    )
    rows = [
        [label, interval(ratio, 3), _bounds(claim), claim.status]
        for label, ratio, (claim, _, _) in zip(labels, ratios, points, strict=True)
    ]
    return Chart(
        "claims",
        title,
        alt,
        "Ratios of two scenarios within this run. The tick is the claimed bound, its arrow the side that holds.",
        *both(figure, "claims", title, alt),
        ["ratio", "measured [95 % CI]", "claimed", "claim"],
        rows,
    )


def _claim_points(claim: ClaimVerdict) -> list[tuple[ClaimVerdict, str, Any]]:
    if claim.per_level:
        return [(claim, f"C={level}", ratio) for level, ratio in claim.per_level.items()]
    if claim.ratio is None:
        return []
    return [(claim, "C=" + ", ".join(map(str, claim.levels)), claim.ratio)]


def _bounds(claim: ClaimVerdict) -> str:
    parts = []
    if claim.at_least is not None:
        parts.append(f"at least {claim.at_least:g}")
    if claim.at_most is not None:
        parts.append(f"at most {claim.at_most:g}")
    return " and ".join(parts) + f" ±{claim.tolerance:.0%}"
