from __future__ import annotations

import importlib.util
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_committed_figure_is_what_the_code_draws() -> None:
    spec = importlib.util.spec_from_file_location("figure", DOCS / "planted_pair_figure.py")
    assert spec is not None
    assert spec.loader is not None
    figure = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(figure)
    drawn = figure.draw()
    assert (DOCS / "planted-pair.svg").read_text(encoding="utf-8") == drawn
    assert drawn.count("<circle") == sum(len(points) for points in figure.MEASURED.values()) > 0
