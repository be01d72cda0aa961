"""Figures as SVG that a page can theme: matplotlib draws, colours become CSS variables.

A figure is drawn once for wide screens and once for narrow ones, since text in a scaled SVG scales with it.
Nothing here knows what is drawn.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

# Width of a figure in CSS pixels at scale 1, where its text has the size that is written here.
WIDE, NARROW = 960, 344
FONT_PX = 12.0
# matplotlib wants a colour; each of these stands for a CSS variable of the page's style sheet.
INK, MUTED, GRID, BAND, SURFACE = "#010203", "#020304", "#030405", "#040506", "#050607"
_ROLES = {INK: "ink", MUTED: "muted", GRID: "grid", BAND: "band", SURFACE: "surface"}
SERIES = ["#0a0b01", "#0a0b02", "#0a0b03", "#0a0b04", "#0a0b05", "#0a0b06"]
VARIABLES = {
    **{colour: f"var(--{role})" for colour, role in _ROLES.items()},
    **{colour: f"var(--s{i})" for i, colour in enumerate(SERIES)},
}
MARKERS = ["o", "s", "^", "D", "v", "P"]
DASHES = ["-", (0, (6, 2)), (0, (2, 1.5)), "-.", (0, (8, 2, 2, 2)), (0, (1, 1))]
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "kit",
    "font.family": "DejaVu Sans",
    "font.size": FONT_PX,
    "axes.titlesize": FONT_PX,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelsize": FONT_PX,
    "xtick.labelsize": FONT_PX - 1,
    "ytick.labelsize": FONT_PX - 1,
    "legend.fontsize": FONT_PX,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "lines.linewidth": 1.8,
    "lines.markersize": 6,
}


@dataclass(frozen=True)
class Chart:
    """A drawn figure with its table.

    Attributes:
        id: Unique on its page; a stable name for links.
        title: Heading.
        alt: What the figure shows, in words, for those who do not see it.
        note: A sentence under the heading.
        wide: SVG for wide screens and paper.
        narrow: SVG for narrow screens.
        columns: Head of the data table.
        rows: The data table; the first cell of a row names it.
    """

    id: str
    title: str
    alt: str
    note: str
    wide: Markup
    narrow: Markup
    columns: list[str]
    rows: list[list[str]]


@contextmanager
def drawing() -> Iterator[None]:
    """Draw with the report's style inside this block."""
    # Imported late: half a second that only a report needs.
    import matplotlib
    from cycler import cycler

    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with matplotlib.rc_context({**STYLE, "axes.prop_cycle": cycler(color=SERIES)}):
        yield


def figure(width: int, height: int) -> Any:
    """Return an empty matplotlib figure of this many CSS pixels, without pyplot's global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width / 72, height / 72), dpi=72, layout="constrained")


def panels(width: int, count: int, height: int, *, across: int = 3, sharey: bool = False) -> Any:
    """Return a figure with ``count`` axes: side by side when wide, one below the other when narrow."""
    columns = min(count, across if width == WIDE else 1)
    rows = -(-count // columns)
    fig = figure(width, height * rows)
    fig.get_layout_engine().set(wspace=0.04, hspace=0.04)
    grid = fig.subplots(rows, columns, squeeze=False, sharey=sharey)
    axes = [ax for row in grid for ax in row]
    for ax in axes[count:]:
        ax.set_visible(False)
    return fig, axes[:count]


def to_svg(fig: Any, prefix: str, title: str, alt: str) -> Markup:
    """Return a figure as inline SVG: themed, named, with ids that are unique on the page.

    Args:
        fig: A matplotlib figure.
        prefix: Put before each id.
        title: Its name for assistive technology.
        alt: Its description.
    """
    out = io.StringIO()
    fig.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.S)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.S)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", text)
    # Sizes stay, the family is the page's.
    text = re.sub(
        r"font: (bold |700 )?([\d.]+px)[^;\"]*",
        lambda m: f"font-size: {m[2]}" + ("; font-weight: 600" if m[1] else ""),
        text,
    )
    text = re.sub(r"#[0-9a-f]{6}", lambda m: VARIABLES.get(m[0], m[0]), text)
    # Three decimals are a thousandth of a pixel.
    text = re.sub(r"(\d+\.\d{2})\d+", r"\1", text)
    box = re.search(r'viewBox="([^"]+)"', text)
    assert box is not None
    head = (
        f'<svg viewBox="{box[1]}" role="img" aria-labelledby="{prefix}-t {prefix}-d">'
        f'<title id="{prefix}-t">{escape(title)}</title><desc id="{prefix}-d">{escape(alt)}</desc>'
    )
    return Markup(head + text[text.index(">") + 1 :].strip())


def both(draw: Callable[[int], Any], name: str, title: str, alt: str) -> tuple[Markup, Markup]:
    """Return a drawing as SVG for wide and for narrow screens."""
    return (
        to_svg(draw(WIDE), f"{name}-w", title, alt),
        to_svg(draw(NARROW), f"{name}-n", title, alt),
    )
