"""report.md: what it says, and that data never become Markdown."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from kit.golden import Golden
from kit.records import RunData
from kit.report.markdown import escape, render_markdown
from kit.verdict import Verdict, judge
from tests.report.test_page import EVIL, evil_run


def test_it_says_verdict_claims_levels_and_findings(run: RunData, verdict: Verdict) -> None:
    text = render_markdown(run, verdict)
    assert text.splitlines()[0] == f"## ✅ REPRODUCED: {verdict.headline}"
    for claim in verdict.claims:
        assert f"- **{claim.status}** – {claim.text}" in text
    table = [line for line in text.splitlines() if line.startswith("| spec-v2 | 8 |")]
    assert len(table) == 1
    level = next(v for v in verdict.levels if (v.scenario, v.level) == ("spec-v2", 8))
    assert f"{level.tok_s.value:.1f}" in table[0]
    assert all(f"`{finding.id}`" in text for finding in verdict.findings)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    # A bar in a cell would move every cell after it.
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {3, 9}


def test_markup_in_data_is_shown_and_not_meant(run: RunData, golden: Golden) -> None:
    bad = evil_run(run)
    text = render_markdown(bad, judge(bad, golden))
    assert EVIL not in text
    assert "<img" not in text
    assert "<script" not in text


def test_it_fits_into_a_comment(run: RunData, golden: Golden) -> None:
    verdict = judge(run, golden)
    many = verdict.model_copy(
        update={"findings": verdict.findings * 500, "levels": verdict.levels * 100}
    )
    assert len(render_markdown(run, many)) < 65_536


@given(st.text())
def test_escaped_text_is_one_line_without_live_markup(text: str) -> None:
    out = escape(text)
    assert not set(out) & set("\n\r<")
    assert re.search(r"(?<!\\)(?:\\\\)*[`*_\[\]|#~]", out) is None
    assert re.search(r"@\w", out) is None


@given(st.text(alphabet="ab<>&|\\`*@ \n"))
def test_escaping_loses_nothing(text: str) -> None:
    out = escape(text).replace("\u200b", "").replace("&lt;", "<").replace("&amp;", "&")
    assert re.sub(r"\\([\\`*_\[\]|#~])", r"\1", out) == " ".join(text.split())
