"""Put charts, tables and sentences on one page that needs nothing but itself."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from kit.golden import Golden
from kit.records import RunData
from kit.report.console import duration
from kit.report.html import judged, measured, telemetry
from kit.report.html.claims import claims_chart
from kit.report.html.svg import Chart, drawing
from kit.report.shell import server_command
from kit.report.text import ENERGY_COLUMNS, claim_line, energy_note, energy_rows, interval
from kit.report.words import (
    MEANING,
    cause_sentences,
    machine_rows,
    patches_live,
    plan_text,
    seconds_of,
)
from kit.verdict.model import ClaimVerdict, Verdict

TONE = {
    "REPRODUCED": "ok",
    "holds": "ok",
    "holds within tolerance": "ok",
    "NOT WORSE": "ok",
    "SLOWER": "bad",
    "INVALID": "bad",
    "WORSE": "bad",
    "refuted": "bad",
    "invalid": "bad",
    "note": "quiet",
    "not measured": "quiet",
}
RAW = ("run.json", "samples.jsonl", "verdict.json", telemetry.TELEMETRY, "report.md")


@functools.cache
def environment() -> jinja2.Environment:
    """Return the template environment: everything that is not markup made here is escaped."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters["tone"] = lambda status: TONE.get(status, "warn")
    return env


def claim_view(claim: ClaimVerdict) -> dict[str, Any]:
    """Return a claim as the page shows it."""
    return {
        "text": claim.text,
        "status": claim.status,
        "ratio": interval(claim.ratio, 2),
        "detail": claim_line(claim)
        .removeprefix(claim.status.upper())
        .strip()
        .removeprefix(f"{claim.text}: "),
    }


def charts_of(run: RunData, verdict: Verdict, golden: Golden | None) -> dict[str, list[Chart]]:
    """Return the charts by section; a section that has nothing to show is empty."""
    if not verdict.levels:
        return {"claims": [], "results": [], "behind": []}
    results = [
        judged.throughput_chart(verdict, golden),
        judged.ratio_chart(verdict),
        judged.acceptance_chart(verdict),
        judged.factors_chart(verdict),
    ]
    behind = [*measured.latency_charts(run), measured.spread_chart(run)]
    return {
        "claims": [c for c in [claims_chart(verdict)] if c],
        "results": [c for c in results if c],
        "behind": [c for c in behind if c],
    }


def factor_rows(verdict: Verdict) -> list[list[str]]:
    """Return how each factor moved at the levels that a cause was looked for at."""
    return [
        [
            cause.scenario,
            str(cause.level),
            change.factor,
            interval(change.ratio, 3),
            "moved" if change.moved else "within its noise",
            "–" if change.share is None else f"{change.share:.0%}",
        ]
        for cause in verdict.causes
        for change in cause.factors
    ]


def raw_files(folder: Path) -> list[str]:
    """Return the data files of a run folder, relative to it, in the order of interest."""
    logs = sorted(p.relative_to(folder).as_posix() for p in folder.glob("logs/*.log"))
    return [name for name in RAW if (folder / name).is_file()] + logs


def commands_of(run: RunData) -> list[tuple[str, str]]:
    """Return the commands that repeat the run, with what each is for."""
    manifest = run.manifest
    words = [Path(manifest.command[0]).name, *manifest.command[1:]] if manifest.command else []
    found = []
    if words:
        found.append(("Repeat the run", shlex.join(words)))
    found.append(("Judge this run again", f"kit check {shlex.quote('runs/' + manifest.run_id)}"))
    if manifest.git_commit:
        commit = manifest.git_commit.removesuffix("+dirty")
        note = " (with uncommitted changes)" if manifest.git_commit.endswith("+dirty") else ""
        found.append((f"Check out the kit that was used{note}", f"git checkout {commit}"))
    return found


def servers_of(run: RunData) -> list[tuple[str, str]]:
    """Return the command of each scenario's server, as it was started first."""
    found: dict[str, str] = {}
    for launch in run.launches:
        if launch.argv and launch.scenario not in found:
            found[launch.scenario] = server_command(launch.argv, launch.env)
    return list(found.items())


def facts_of(run: RunData, verdict: Verdict) -> list[tuple[str, str]]:
    """Return the line of facts under the verdict."""
    seconds = seconds_of(run)
    rows: list[tuple[str, object]] = [
        ("rig", verdict.rig),
        ("reference", verdict.golden_source and f"golden, {verdict.golden_source}"),
        ("began", run.manifest.created.replace("T", " ").replace("+00:00", " UTC")),
        ("took", seconds and duration(seconds)),
        ("requests", f"{sum(r.phase == 'measure' for r in run.requests)} measured"),
        ("status", run.manifest.status if run.manifest.status != "complete" else None),
    ]
    return [(name, str(value)) for name, value in rows if value]


def render(run: RunData, verdict: Verdict, golden: Golden | None, folder: Path) -> str:
    """Return the report of a run as HTML.

    Args:
        run: What was measured.
        verdict: Its verdict.
        golden: The golden file that it was judged against.
        folder: The run folder, for telemetry and links to its files.
    """
    samples = telemetry.read_telemetry(folder / telemetry.TELEMETRY)
    with drawing():
        charts = charts_of(run, verdict, golden)
        machine = telemetry.telemetry_chart(run, samples) if samples else None
    context: Mapping[str, Any] = {
        "title": f"{verdict.status}: {run.manifest.run_id}",
        "run": run,
        "manifest": run.manifest,
        "verdict": verdict,
        "meaning": MEANING[verdict.status],
        "claims": [claim_view(claim) for claim in verdict.claims],
        "causes": cause_sentences(verdict),
        "factors": factor_rows(verdict),
        "charts": charts,
        "energy_columns": ENERGY_COLUMNS,
        "energy": energy_rows(verdict),
        "energy_note": energy_note(verdict),
        "telemetry": machine,
        "telemetry_missing": telemetry.MISSING,
        "unavailable": samples.unavailable if samples else {},
        "facts": facts_of(run, verdict),
        "plan": plan_text(run.manifest),
        "machine": machine_rows(run.manifest),
        "patches": patches_live(run),
        "commands": commands_of(run),
        "servers": servers_of(run),
        "files": raw_files(folder),
        "interval": interval,
    }
    return environment().get_template("report.html.j2").render(context)
