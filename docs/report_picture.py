"""Draw docs/report.svg: the verdict of a run as the terminal shows it.

python docs/report_picture.py runs/RUN
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from rich.console import Console

from kit.golden import golden_for
from kit.report.text import print_verdict
from kit.runfolder import read_run
from kit.verdict import judge

run = read_run(Path(sys.argv[1]))


class Wrapping(Console):
    """A picture has a width: long lines are wrapped, not cut."""

    def print(self, *objects: object, **options: object) -> None:  # type: ignore[override]
        """Print without soft wrapping."""
        super().print(*objects, **{**options, "soft_wrap": False})  # type: ignore[arg-type]


console = Wrapping(record=True, width=150, file=io.StringIO(), force_terminal=True, highlight=False)
print_verdict(judge(run, golden_for(str(run.manifest.rig["name"]))), console)
svg = console.export_svg(title="make reproduce")
# The default style fetches a font from the web; a picture should open offline.
start, end = svg.index("@font-face"), svg.rindex("@font-face")
end = svg.index("}", end) + 1
svg = svg[:start] + svg[end:]
svg = svg.replace("Fira Code", "DejaVu Sans Mono, Menlo, Consolas")
Path(__file__).with_name("report.svg").write_text(svg)
