"""Known troubles: log patterns, what they mean, what to do. The data is ``issues.yaml`` beside this file."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, field_validator

from kit.yamlio import StrictModel, read_model

DATA = Path(__file__).parent / "issues.yaml"
# A log line is cut here before matching: no pattern may be made slow by a line of megabytes.
LINE_LIMIT = 2000


class KnownIssue(StrictModel):
    """One known trouble.

    ``pattern`` is searched in each log line; with ``after`` it only counts once a line matched that.
    """

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]+$")
    pattern: str
    cause: str = Field(min_length=10)
    remedy: str = Field(min_length=10)
    link: str | None = None
    versions: str | None = None
    priority: int = Field(default=5, ge=0, le=9, description="lower is told first")

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return value


class _File(StrictModel):
    schema_version: int = Field(alias="schema")
    issues: list[KnownIssue]


@dataclass(frozen=True, slots=True)
class Hit:
    """A known issue and the first line that showed it."""

    issue: KnownIssue
    line: str


@functools.cache
def all_issues() -> tuple[KnownIssue, ...]:
    """Return every known issue, in the file's order."""
    return tuple(read_model(_File, DATA, "known-issue file").issues)


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def match(lines: Iterable[str], issues: Iterable[KnownIssue] | None = None) -> list[Hit]:
    """Return the known issues that ``lines`` show, each once, the most telling first.

    Args:
        lines: Log lines, oldest first.
        issues: What to look for; everything known when None.
    """
    known = all_issues() if issues is None else tuple(issues)
    found: dict[str, Hit] = {}
    for line in lines:
        cut = line[:LINE_LIMIT]
        for issue in known:
            if issue.id not in found and _compiled(issue.pattern).search(cut):
                found[issue.id] = Hit(issue, cut.strip())
    return sorted(found.values(), key=lambda hit: hit.issue.priority)
