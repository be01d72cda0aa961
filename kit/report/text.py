"""A verdict as text: the table and the sentences, for terminals and pull requests."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from kit.verdict.model import ClaimVerdict, Interval, LevelEnergy, LevelVerdict, Verdict

BAR_WIDTH = 12
BLOCKS = " ▏▎▍▌▋▊▉█"
STYLES = {
    "REPRODUCED": "bold green",
    "FASTER": "bold yellow",
    "SLOWER": "bold red",
    "INCONCLUSIVE": "bold yellow",
    "NOT COMPARABLE": "bold yellow",
    "INVALID": "bold red",
}


def bar(value: float, most: float, width: int = BAR_WIDTH) -> str:
    """Return a horizontal bar of ``value`` in eighths of a character, ``width`` for ``most``."""
    if most <= 0:
        return ""
    eighths = max(0, min(width * 8, round(value / most * width * 8)))
    return "█" * (eighths // 8) + (BLOCKS[eighths % 8] if eighths % 8 else "")


def interval(value: Interval | None, digits: int = 2) -> str:
    """Return ``1.02 [1.00, 1.04]``, or a dash."""
    if value is None:
        return "–"
    if value.low is None or value.high is None:
        return f"{value.value:.{digits}f}"
    return f"{value.value:.{digits}f} [{value.low:.{digits}f}, {value.high:.{digits}f}]"


def accept(level: LevelVerdict) -> str:
    """Return ``2.71 / 2.71 / 2.73`` (measured / these prompts' plan / theory), or a dash."""
    if level.accept_length is None:
        return "–"
    known = (level.accept_length, level.planned_accept_length, level.expected_accept_length)
    return " / ".join(f"{value:.2f}" for value in known if value)


def _status(verdict: Verdict, level: LevelVerdict) -> str:
    """Return a level's verdict; where levels decide nothing it would only mislead."""
    if level.status == "NO REFERENCE":
        return ""
    decides = verdict.decided_by == "levels" and verdict.status != "NOT COMPARABLE"
    return level.status if decides else "only reported"


def level_rows(verdict: Verdict) -> list[list[str]]:
    """Return the table's rows: scenario, C, tok/s with CI, bar, accept, step ms, in flight, ratio, verdict."""
    most = max((level.tok_s.value for level in verdict.levels), default=0.0)
    rows = []
    for level in verdict.levels:
        step = "–" if level.step_time_s is None else f"{level.step_time_s * 1e3:.1f}"
        tolerance = "" if level.tolerance is None else f" ±{level.tolerance:.0%}"
        rows.append(
            [
                level.scenario,
                f"{level.level}{'*' if level.replicate else ''}",
                interval(level.tok_s, 1),
                bar(level.tok_s.value, most),
                accept(level),
                step,
                f"{level.effective_concurrency:.1f}",
                interval(level.ratio, 3) + (tolerance if level.ratio else ""),
                _status(verdict, level),
            ]
        )
    return rows


COLUMNS = [
    "scenario",
    "C",
    "tok/s [95 % CI]",
    "",
    "accept / plan / theory",
    "step ms",
    "in flight",
    "ratio to golden",
    "verdict",
]


ENERGY_COLUMNS = ["scenario", "C", "J/token", "J", "output tokens", "not covered"]


def _gap(energy: LevelEnergy) -> str:
    """Return what the joules leave out, or a dash."""
    said = []
    if energy.gap_s:
        said.append(f"{energy.gap_s:.1f} s of {energy.seconds:.1f} s")
    if energy.passes_without:
        said.append(f"{energy.passes_without} of {energy.passes + energy.passes_without} passes")
    return ", ".join(said) or "–"


def energy_rows(verdict: Verdict) -> list[list[str]]:
    """Return the rows of the energy table; a figure with a gap is a lower bound and marked so."""
    return [
        [
            e.scenario,
            str(e.level),
            f"{'≥ ' if e.gap_s else ''}{e.joules_per_token:.3g}",
            f"{'≥ ' if e.gap_s else ''}{e.joules:.0f}",
            str(e.tokens),
            _gap(e),
        ]
        for e in verdict.energy
    ]


def energy_note(verdict: Verdict) -> str:
    """Return what the joules are of, or why there are none; empty without levels and for old verdicts."""
    if not verdict.levels:
        return ""
    if not verdict.energy:
        why = verdict.energy_unavailable
        return f"Joules per token are not available here: {why}." if why else ""
    note = f"Energy of {' and of '.join(dict.fromkeys(e.source for e in verdict.energy))}."
    if any(e.gap_s for e in verdict.energy):
        note += " ≥: seconds without samples are not in it, so the true figure is higher."
    return note


def claim_line(claim: ClaimVerdict) -> str:
    """Return one claim as a sentence with its figures."""
    bounds = []
    if claim.at_least is not None:
        bounds.append(f"at least {claim.at_least:g}")
    if claim.at_most is not None:
        bounds.append(f"at most {claim.at_most:g}")
    where = ", ".join(map(str, claim.levels))
    golden = "" if claim.golden_ratio is None else f", golden {claim.golden_ratio:.3f}"
    if claim.ratio is None:
        return f"{claim.status.upper():<24} {claim.text}: not measured"
    return (
        f"{claim.status.upper():<24} {claim.text}: {claim.numerator}/{claim.denominator} at C={where} is "
        f"{claim.ratio.text()} ({' and '.join(bounds)} ±{claim.tolerance:.0%}{golden})"
    )


NUMERIC = {"C", "step ms", "in flight", "J/token", "J", "output tokens"}


def _print_table(columns: list[str], rows: list[list[str]], console: Console) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in NUMERIC else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    if console.is_terminal:
        console.print(table)
    else:
        # A pipe has no width: never cut or wrap what may be read by a program or a colleague.
        wide = Console(file=console.file, width=200, no_color=True)
        wide.print(table)


def print_verdict(verdict: Verdict, console: Console) -> None:
    """Print table, claims, findings and, last, the verdict itself."""
    if verdict.levels:
        _print_table(COLUMNS, level_rows(verdict), console)
        if any(level.replicate for level in verdict.levels):
            console.print(
                "* replicates of one experiment: 30 requests a level, so at most 30 in flight"
            )

    def say(text: str, style: str = "") -> None:
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    if verdict.energy:
        say("")
        _print_table(ENERGY_COLUMNS, energy_rows(verdict), console)
    if note := energy_note(verdict):
        say(note)
    if verdict.claims:
        say("")
        say("Claims", "bold")
        for claim in verdict.claims:
            say(f"  {claim_line(claim)}")
            for level, ratio in claim.per_level.items():
                say(f"      C={level}: {ratio.text()}")
    for cause in verdict.causes:
        say(f"Cause  {cause.text}")
    if verdict.findings:
        say("")
        say("Findings", "bold")
        for finding in verdict.findings:
            say(f"  {finding.severity.upper()} [{finding.id}] {finding.seen}")
            say(f"      {finding.why}")
            say(f"      {finding.remedy}")
    if verdict.caveat:
        say("")
        say(verdict.caveat)
    say("")
    say(verdict.comparable)
    say(f"{verdict.status}  {verdict.headline}", STYLES[verdict.status])
