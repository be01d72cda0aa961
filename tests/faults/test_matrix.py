"""Every fault gives the verdict, exit code and sentence that it must, and docs/faults.md shows what is seen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.faults.bench import ROOT, Bench
from tests.faults.matrix import CASES, Case, look, plain, row
from tests.faults.write_table import table_in

PAGE = ROOT / "docs" / "faults.md"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_fault(bench: Bench, case: Case) -> None:
    seen = look(bench, case.make(bench))
    text = plain(seen.sentence, bench)
    assert (seen.exit_code, seen.verdict) == (case.exit_code, case.verdict), text
    assert re.match(case.says, text), text
    assert bench.left() == []
    assert row(case, seen, bench) in table_in(PAGE.read_text(encoding="utf-8"))


def test_the_table_has_no_other_rows() -> None:
    shown = [line.split(" | ")[0] for line in table_in(Path(PAGE).read_text(encoding="utf-8"))]
    assert shown == [f"| {case.what}" for case in CASES]
