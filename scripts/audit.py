"""Look up every package that the locks pin in a folder of security advisories; needs no network.

    git clone --depth 1 https://github.com/pypa/advisory-database
    python scripts/audit.py advisory-database [--lock locks/cpu-py311.txt ...] [--ignore ID ...]

Reads advisories in the OSV format (https://ossf.github.io/osv-schema/): the YAML files of pypa/advisory-database, or
any folder of OSV files, YAML or JSON, such as github/advisory-database. Exit code: 0 nothing found, 1 something found
or something that a person must look at, 2 no advisories there or no lock.

A database knows only what was published before it was copied: the newest date in it is printed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parent.parent
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.M)


def normal(name: str) -> str:
    """Return a package's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(locks: list[Path]) -> dict[tuple[str, str], list[str]]:
    """Return (name, version) of every pinned package, with the names of the locks that pin it."""
    found: dict[tuple[str, str], list[str]] = {}
    for lock in locks:
        for name, version in PIN.findall(lock.read_text(encoding="utf-8")):
            found.setdefault((normal(name), version), []).append(lock.name)
    return found


@dataclass
class Finding:
    """Advisories about one flaw of one pinned package.

    ``certain`` is False where the advisory gives no versions that can be compared: a person must look.
    """

    package: str
    version: str
    ids: set[str]
    fixed: set[str]
    text: str
    certain: bool
    locks: list[str] = field(default_factory=list)


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def in_range(version: Version, events: list[dict[str, str]]) -> bool | None:
    """Tell whether a version lies in an OSV range; None where an event's version cannot be read.

    The rule of the schema: sort the events; affected if the last ``introduced`` at or below the version has no
    ``fixed`` at or below it and no ``last_affected`` below it after that.
    """
    steps: list[tuple[Version, str]] = []
    for event in events:
        for kind, text in event.items():
            if kind not in ("introduced", "fixed", "last_affected"):
                continue
            at = _version("0.dev0" if text == "0" else text)
            if at is None:
                return None
            steps.append((at, kind))
    # Where a version is both introduced and fixed, the later word is that of ``introduced``.
    steps.sort(key=lambda step: (step[0], step[1] == "introduced"))
    affected = False
    for at, kind in steps:
        if kind == "introduced" and version >= at:
            affected = True
        elif (kind == "fixed" and version >= at) or (kind == "last_affected" and version > at):
            affected = False
    return affected


def affects(entry: dict[str, Any], pin: str) -> bool | None:
    """Tell whether an ``affected`` entry names a version; None where it cannot be told."""
    # 2.13.0+cpu is a build of 2.13.0: advisories never name local versions.
    parsed = _version(pin)
    if parsed is None:
        return None
    version = Version(parsed.public)
    listed = [_version(str(v)) for v in entry.get("versions") or []]
    if version in [v for v in listed if v is not None]:
        return True
    ranges = entry.get("ranges") or []
    told = [
        in_range(version, r.get("events") or [])
        for r in ranges
        if r.get("type") in ("ECOSYSTEM", "SEMVER")
    ]
    if True in told:
        return True
    # A list of versions, or a range in versions, that does not name this one, is an answer. Commits alone are not.
    if None in told or not (told or listed):
        return None
    return False


def fixed_in(entry: dict[str, Any]) -> set[str]:
    """Return the versions that an entry calls fixed."""
    return {
        str(event["fixed"])
        for r in entry.get("ranges") or []
        if r.get("type") in ("ECOSYSTEM", "SEMVER")
        for event in r.get("events") or []
        if "fixed" in event
    }


def read(path: Path) -> dict[str, Any] | None:
    """Return an advisory; None for a file that is none."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        # BaseLoader builds nothing but strings, lists and mappings: 1.10 stays "1.10".
        data = json.loads(text) if path.suffix == ".json" else yaml.load(text, yaml.BaseLoader)
    except (ValueError, yaml.YAMLError, RecursionError):
        return None
    return data if isinstance(data, dict) and "id" in data and "affected" in data else None


def advisories(folder: Path, names: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the advisories in a folder; of pypa/advisory-database only those of ``names`` are read."""
    vulns = folder / "vulns"
    roots = [p for p in vulns.iterdir() if normal(p.name) in names] if vulns.is_dir() else [folder]
    for root in sorted(roots):
        for path in sorted(root.rglob("*")):
            if path.suffix in (".yaml", ".yml", ".json") and path.is_file():
                found = read(path)
                if found is not None:
                    yield found


def review(
    pins: dict[tuple[str, str], list[str]], found: list[dict[str, Any]], ignored: set[str]
) -> list[Finding]:
    """Return what the advisories say about the pins, one finding a flaw, those of one flaw (aliases) together."""
    findings: list[Finding] = []
    for advisory in found:
        ids = {str(advisory["id"]), *map(str, advisory.get("aliases") or [])}
        if advisory.get("withdrawn") or ids & ignored:
            continue
        text = str(advisory.get("summary") or advisory.get("details") or "").strip()
        for entry in advisory.get("affected") or []:
            package = entry.get("package") or {}
            if package.get("ecosystem") != "PyPI":
                continue
            for (name, version), locks in pins.items():
                if name != normal(str(package.get("name"))):
                    continue
                told = affects(entry, version)
                if told is False:
                    continue
                head = re.split(r"(?<=\.)\s|\n", text)[0][:160]
                fixed = fixed_in(entry)
                findings.append(Finding(name, version, set(ids), fixed, head, told is True, locks))
    return _merged(findings)


def _merged(findings: list[Finding]) -> list[Finding]:
    merged: list[Finding] = []
    for one in sorted(findings, key=lambda f: (f.package, f.version, sorted(f.ids))):
        same = [
            m
            for m in merged
            if (m.package, m.version) == (one.package, one.version) and m.ids & one.ids
        ]
        for other in same:
            merged.remove(other)
            one.ids |= other.ids
            one.fixed |= other.fixed
            one.certain |= other.certain
            one.text = other.text or one.text
        merged.append(one)
    return merged


def _order(text: str) -> tuple[Version, str]:
    return (_version(text) or Version("0"), text)


def line(finding: Finding) -> str:
    """Return a finding as a row of a table."""
    fixed = ", ".join(sorted(finding.fixed, key=_order)) or "no version named"
    what = finding.text if finding.certain else f"LOOK: no versions to compare. {finding.text}"
    ids = ", ".join(sorted(finding.ids))
    return f"| {finding.package} | {finding.version} | {ids} | {fixed} | {what.replace('|', '/')} |"


def main(argv: list[str] | None = None) -> int:
    """Print the findings; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("database", type=Path, help="a folder of advisories")
    parser.add_argument("--lock", type=Path, action="append", help="default: all of locks/")
    parser.add_argument("--ignore", action="append", default=[], help="an advisory's id or alias")
    args = parser.parse_args(argv)
    locks = args.lock or sorted((ROOT / "locks").glob("*.txt"))
    missing = [str(lock) for lock in locks if not lock.is_file()]
    pins = {} if missing else pinned(locks)
    if missing or not pins:
        print(f"audit: no pinned package in {', '.join(missing) or 'the locks'}.", file=sys.stderr)
        return 2
    folder = args.database
    found = list(advisories(folder, {n for n, _ in pins})) if folder.is_dir() else []
    if not found:
        print(
            f"audit: {folder} holds no advisories about these packages: is it a checkout of an advisory database?",
            file=sys.stderr,
        )
        return 2
    findings = review(pins, found, set(args.ignore))
    newest = max(str(a.get("modified") or a.get("published") or "") for a in found)[:10]
    print(f"{len(pins)} pins, {len(found)} advisories read, the newest of {newest or 'no date'}\n")
    if findings:
        print("| package | version | advisories | fixed in | what |\n|---|---|---|---|---|")
        for finding in findings:
            print(line(finding))
        return 1
    print("Nothing found. An advisory that is newer than the database is not in it.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
