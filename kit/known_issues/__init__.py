"""Known troubles: log patterns, what they mean, what to do. The data is ``issues.yaml`` beside this file."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, field_validator

from kit.yamlio import StrictModel, read_model

DATA = Path(__file__).parent / "issues.yaml"
# A log line is cut here before matching: no pattern may be made slow by a line of megabytes.
LINE_LIMIT = 2000


# One bound of a version: 0.5.12.post1 counts as 0.5.12.1, which orders what is needed here.
_BOUND = re.compile(r"(==|>=|<)(\d+(?:\.\w+)*)")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.split("+")[0])))


def within(version: str, bounds: str) -> bool:
    """Return whether a version lies within bounds such as ``>=0.13,<0.15``. Pure."""
    mine = _numbers(version)
    for bound in bounds.split(","):
        sign, text = _BOUND.fullmatch(bound.strip()).groups()  # type: ignore[union-attr]
        other = _numbers(text)
        # 0.13 and 0.13.0 are the same version.
        width = max(len(mine), len(other))
        a, b = (v + (0,) * (width - len(v)) for v in (mine, other))
        if not {"==": a == b, ">=": a >= b, "<": a < b}[sign]:
            return False
    return True


class KnownIssue(StrictModel):
    """One known trouble.

    ``pattern`` is searched in each log line. ``versions`` bounds the versions of packages that it is known of: where
    another is installed the issue is not told, since its cause would be a wrong one.
    """

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]+$")
    pattern: str
    cause: str = Field(min_length=10)
    remedy: str = Field(min_length=10)
    link: str | None = None
    versions: dict[str, str] = Field(
        default_factory=dict, description="package: bounds, such as >=0.13,<0.15"
    )
    priority: int = Field(default=5, ge=0, le=9, description="lower is told first")
    fatal: bool = Field(
        default=True, description="whether a server can die of it; else it explains odd numbers"
    )

    @field_validator("versions")
    @classmethod
    def _bounds(cls, value: dict[str, str]) -> dict[str, str]:
        for bounds in value.values():
            if not all(_BOUND.fullmatch(b.strip()) for b in bounds.split(",")):
                raise ValueError(f"not bounds of a version: {bounds}; write ==, >= or <")
        return value

    def applies(self, installed: Mapping[str, str]) -> bool:
        """Return whether it is known of these versions; a package whose version is not known excludes nothing."""
        return all(
            within(installed[package], bounds)
            for package, bounds in self.versions.items()
            if package in installed
        )

    @property
    def advice(self) -> str:
        """Return what to do, the versions that it is known of and where to read more."""
        text = self.remedy
        if self.versions:
            text += f" Known of {', '.join(f'{p} {b}' for p, b in self.versions.items())}."
        return f"{text} See {self.link}" if self.link else text

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


@functools.cache
def installed_versions() -> Mapping[str, str]:
    """Return the versions, in this Python, of the packages that known issues name; those not installed are left out."""
    found = {}
    for package in {p for issue in all_issues() for p in issue.versions}:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def match(
    lines: Iterable[str],
    issues: Iterable[KnownIssue] | None = None,
    installed: Mapping[str, str] | None = None,
) -> list[Hit]:
    """Return the known issues that ``lines`` show, each once, the most telling first.

    Args:
        lines: Log lines, oldest first.
        issues: What to look for; everything known when None.
        installed: Versions by package where the server runs, such as :func:`installed_versions` for one that uses this
            Python. None or a package left out: not known, so nothing is excluded.
    """
    known = [
        issue
        for issue in (all_issues() if issues is None else issues)
        if issue.applies(installed or {})
    ]
    found: dict[str, Hit] = {}
    for line in lines:
        cut = line[:LINE_LIMIT]
        for issue in known:
            if issue.id not in found and _compiled(issue.pattern).search(cut):
                found[issue.id] = Hit(issue, cut.strip())
    return sorted(found.values(), key=lambda hit: hit.issue.priority)
