"""Write the table of docs/faults.md from what the faults really give.

python -m tests.faults.write_table
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.faults.bench import ROOT, Bench
from tests.faults.matrix import CASES, look, row

BEGIN = "| fault | verdict | exit code | what the kit says first |\n|---|---|---|---|\n"
END = "<!-- end of the table -->"


def table_in(page: str) -> list[str]:
    """Return the rows of the page's table."""
    return page.split(BEGIN)[1].split(END)[0].splitlines()


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder) / "bench")
        for case in CASES:
            bench.clear()
            bench.rig()
            for golden in (bench.home / "golden").iterdir():
                golden.unlink()
            seen = look(bench, case.make(bench))
            rows.append(row(case, seen, bench))
            print(rows[-1], flush=True)
        bench.close()
    page = ROOT / "docs" / "faults.md"
    text = page.read_text(encoding="utf-8")
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    page.write_text(head + BEGIN + "\n".join(rows) + "\n" + END + tail, encoding="utf-8")


if __name__ == "__main__":
    main()
