"""report.md: the verdict for a pull request or a CI summary."""

from __future__ import annotations

import re

from kit.records import RunData
from kit.report.text import (
    COLUMNS,
    ENERGY_COLUMNS,
    claim_line,
    energy_note,
    energy_rows,
    level_rows,
)
from kit.report.words import MEANING, cause_sentences, machine_rows, patches_live, plan_text
from kit.verdict.model import Verdict

MARKS = {
    "REPRODUCED": "✅",
    "FASTER": "⚠️",
    "SLOWER": "❌",
    "INCONCLUSIVE": "⚠️",
    "NOT COMPARABLE": "⚠️",
    "INVALID": "❌",
}
# The bar needs a font of fixed width, which a pull request does not give a table.
_BAR = COLUMNS.index("")


def escape(text: str) -> str:
    """Return text that Markdown shows as it is: no markup, no table cell, no mention, on one line."""
    text = " ".join(text.split())
    text = re.sub(r"([\\`*_\[\]|#~])", r"\\\1", text)
    # A zero-width space keeps @names from notifying people.
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("@", "@\u200b")


def _table(columns: list[str], rows: list[list[str]]) -> list[str]:
    return [
        "| " + " | ".join(map(escape, columns)) + " |",
        "|" + " --- |" * len(columns),
        *("| " + " | ".join(map(escape, row)) + " |" for row in rows),
    ]


def render_markdown(run: RunData, verdict: Verdict) -> str:
    """Return the verdict as Markdown: below 65,536 characters, what a pull request's comment may hold."""
    lines = [
        f"## {MARKS[verdict.status]} {verdict.status}: {escape(verdict.headline)}",
        "",
        f"{MEANING[verdict.status]} Run `{escape(verdict.run_id)}`, rig `{escape(verdict.rig)}`.",
        "",
    ]
    if verdict.claims:
        lines += ["**Claims**", ""]
        for claim in verdict.claims:
            said = claim_line(claim).removeprefix(claim.status.upper()).strip()
            lines.append(f"- **{claim.status}** – {escape(said)}")
        lines.append("")
    lines += [f"**Cause** {escape(sentence)}" for sentence in cause_sentences(verdict)[:10]]
    lines.append("")
    if verdict.levels:
        columns = [c for i, c in enumerate(COLUMNS) if i != _BAR]
        rows = [[c for i, c in enumerate(r) if i != _BAR] for r in level_rows(verdict)]
        lines += _table(columns, rows[:200])
        lines.append("")
        if any(v.replicate for v in verdict.levels):
            lines += ["\\* replicates of one experiment: at most 30 requests in flight", ""]
    if verdict.energy:
        lines += [*_table(ENERGY_COLUMNS, energy_rows(verdict)[:200]), ""]
    if note := energy_note(verdict):
        lines += [escape(note), ""]
    if verdict.findings:
        lines += ["**Findings**", ""]
        lines += [
            f"- {f.severity.upper()} `{f.id}`: {escape(f.seen)} {escape(f.remedy)}"
            for f in verdict.findings[:50]
        ]
        lines.append("")
    if verdict.caveat:
        lines += [f"> {escape(verdict.caveat)}", ""]
    lines += [escape(verdict.comparable), "", "<details><summary>Machine and plan</summary>", ""]
    lines += [escape(plan_text(run.manifest)) + ".", ""]
    machine = [list(row) for row in machine_rows(run.manifest)]
    machine += [
        [f"patches live, {s}", ", ".join(live) or "none"] for s, live in patches_live(run).items()
    ]
    lines += [*_table(["what", "value"], machine), "", "</details>", ""]
    return "\n".join(lines)
