"""Draw docs/planted-pair.svg: what the planted pair rests on, computed by the kit's own code.

Run ``python docs/planted_pair_figure.py`` after a change of the construction; a test compares the
file.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from kit.planted import PairSpec, expected_accept_length
from kit.planted.rotary import SCORE_GAP, choose, score_share

OUT = Path(__file__).with_name("planted-pair.svg")
WIDTH, HEIGHT = 860, 330
INK, SOFT, GRID, BLUE, RED = "#1f2933", "#616e7c", "#e4e7eb", "#2563ab", "#c2410c"


class Panel:
    """One set of axes at a place on the page; data in, SVG elements out."""

    def __init__(
        self, left: int, title: str, x: tuple[float, float], y: tuple[float, float], log: bool
    ) -> None:
        """Draw the frame's title."""
        self.box = (left, 48, 340, 220)  # left, top, width, height
        self.x_range, self.y_range, self.log = x, y, log
        self.parts = [text(left, 28, title, size=14, weight=600)]

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Page coordinates of a data point."""
        left, top, width, height = self.box
        (x0, x1), (y0, y1) = self.x_range, self.y_range
        across = math.log(x / x0) / math.log(x1 / x0) if self.log else (x - x0) / (x1 - x0)
        return left + across * width, top + height - (y - y0) / (y1 - y0) * height

    def grid(self, xs: list[float], ys: list[float], x_name: str, y_name: str) -> None:
        """Grid lines, tick labels and the names of the axes."""
        left, top, width, height = self.box
        for y in ys:
            _, at = self.at(self.x_range[0], y)
            self.parts.append(line([(left, at), (left + width, at)], GRID, 1))
            self.parts.append(text(left - 8, at + 4, f"{y:g}", anchor="end", fill=SOFT))
        for x in xs:
            at, _ = self.at(x, self.y_range[0])
            label = f"{x:,.0f}" if x >= 1000 else f"{x:g}"
            self.parts.append(text(at, top + height + 18, label, anchor="middle", fill=SOFT))
        self.parts.append(
            text(left + width / 2, top + height + 40, x_name, anchor="middle", fill=SOFT)
        )
        self.parts.append(text(left, top - 6, y_name, fill=SOFT))

    def curve(self, xs: np.ndarray, ys: np.ndarray, colour: str, width: float = 2) -> None:
        """A line through data points."""
        points = [self.at(float(x), float(y)) for x, y in zip(xs, ys, strict=True)]
        self.parts.append(line(points, colour, width))

    def dot(self, x: float, y: float, colour: str) -> None:
        """A filled circle."""
        cx, cy = self.at(x, y)
        self.parts.append(f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="4" fill="{colour}"/>')

    def note(self, x: float, y: float, words: str, colour: str, anchor: str = "start") -> None:
        """A label at a data point."""
        cx, cy = self.at(x, y)
        self.parts.append(text(cx, cy, words, anchor=anchor, fill=colour))


def text(
    x: float,
    y: float,
    words: str,
    *,
    anchor: str = "start",
    fill: str = INK,
    size: int = 12,
    weight: int = 400,
) -> str:
    """An SVG text element."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}" '
        f'font-size="{size}" font-weight="{weight}">{words}</text>'
    )


def line(points: list[tuple[float, float]], colour: str, width: float) -> str:
    """An SVG polyline."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>'


def attention_panel() -> Panel:
    """Attention score by distance: highest score per bin, so that no peak is left out."""
    spec = PairSpec()
    chosen = choose(spec)
    distances = np.arange(1, 4353)
    score = chosen.score * score_share(chosen.weights, distances)
    edges = np.unique(np.geomspace(1, 4353, 161).astype(int))
    highest = np.maximum.reduceat(score, edges[:-1] - 1)
    title = "The draft attends to itself: score by distance"
    panel = Panel(60, title, (1, 4352), (0, 180), log=True)
    panel.grid([1, 10, 100, 1000, 4352], [0, 40, 80, 120, 160], "distance in positions", "score")
    panel.curve(edges[:-1], np.maximum(highest, 0), BLUE)
    top, bound = chosen.score, chosen.score - SCORE_GAP
    panel.curve(np.array([1, 4352]), np.array([top, top]), INK, 1.5)
    panel.curve(np.array([1, 4352]), np.array([bound, bound]), RED, 1)
    panel.note(4352, top + 5, f"itself: {top:.0f}", INK, "end")
    panel.note(4352, bound + 5, f"no other position above {bound:.0f}", RED, "end")
    return panel


def dial_panel() -> Panel:
    """Expected accept length by p, and what SGLang reported on the CPU."""
    panel = Panel(490, "The dial: accept length by p (q = 0.6)", (0, 1), (1, 4), log=False)
    panel.grid(
        [0, 0.25, 0.5, 0.75, 1],
        [1, 2, 3, 4],
        "p, share of right first choices",
        "tokens per verify step",
    )
    p = np.linspace(0, 1, 81)
    for shape, colour, words, at in (
        ((1, 3, 4), BLUE, "chain, 3 steps", (0.62, 1.72)),
        ((4, 3, 8), RED, "tree, topk 4, 8 tokens", (0.02, 2.7)),
    ):
        panel.curve(p, np.array([expected_accept_length(*shape, float(x), 0.6) for x in p]), colour)
        panel.note(*at, words, colour)
        for x, seen in MEASURED[shape].items():
            panel.dot(x, seen, colour)
    return panel


MEASURED = {
    (1, 3, 4): {0.1: 1.127, 0.3: 1.439, 0.5: 1.913, 0.75: 2.723, 0.9: 3.446, 1.0: 4.0},
    (4, 3, 8): {0.1: 1.853, 0.3: 2.326, 0.5: 2.807, 0.75: 3.395, 0.9: 3.762, 1.0: 4.0},
}
"""spec_accept_length by p of SGLang 0.5.12.post1 on the CPU (chain: v2 worker, tree: v1 worker).

32 requests of 200 tokens each at concurrency 8 on a pair of 4 layers; all outputs and step counts
exact.
"""


def draw() -> str:
    """The whole figure."""
    body = "\n".join(part for panel in (attention_panel(), dial_panel()) for part in panel.parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="system-ui, sans-serif" role="img" '
        f'aria-label="Attention score of the draft by distance; accept length by p">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    OUT.write_text(draw(), encoding="utf-8")
