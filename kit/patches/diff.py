"""A strict applier of unified diffs: no fuzz, no moved hunks, no ``patch`` program.

Enough of the format for a series of source patches: several files in one diff, new files (``--- /dev/null``), files
without a newline at their end, the extra lines that git writes. Deleted, renamed and binary files are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from kit.errors import UserError

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NO_NEWLINE = "\\ No newline at end of file"
# Lines of git between two files that say nothing which the rest does not say.
_GIT = ("diff --git ", "index ", "new file mode ")
_REFUSED = ("deleted file mode ", "rename ", "copy ", "old mode ", "new mode ", "Binary files ")


@dataclass(frozen=True)
class Hunk:
    """One hunk.

    Attributes:
        start: 1-based line where ``old`` begins; where ``old`` is empty, the line that ``new`` follows.
        old: Lines before, each with its line end.
        new: Lines after.
    """

    start: int
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True)
class FileDiff:
    """The hunks of one file; ``creates`` tells that the file must not exist before."""

    path: str
    creates: bool
    hunks: tuple[Hunk, ...] = field(default_factory=tuple)


def split_lines(text: str) -> list[str]:
    """Split at ``\\n`` only, keeping it: ``str.splitlines`` also splits at form feeds and the like."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _path(line: str) -> str:
    name = line[4:].split("\t")[0].strip()
    if name == "/dev/null":
        return name
    path = name[2:] if name.startswith(("a/", "b/")) else name
    if path.startswith("/") or ".." in path.split("/"):
        raise UserError(f"A patch names the path {path!r}, which leaves the target folder.")
    return path


def parse(text: str) -> tuple[str, list[FileDiff]]:
    """Split a patch into its header (all before the first file) and its file diffs.

    Args:
        text: The patch, lines ending in ``\\n``.

    Raises:
        UserError: the text is no unified diff that this module applies.
    """
    lines = split_lines(text)
    starts = ("--- ", "diff --git ")
    first = next((i for i, line in enumerate(lines) if line.startswith(starts)), len(lines))
    files: list[FileDiff] = []
    i = first
    while i < len(lines):
        if lines[i].startswith(_REFUSED):
            raise UserError(
                f"Line {i + 1} of a patch is not supported: {lines[i].rstrip()!r}.",
                "Only changed and new text files can be patched.",
            )
        if lines[i].startswith(_GIT):
            i += 1
            continue
        if not lines[i].startswith("--- ") or i + 1 >= len(lines):
            raise UserError(f"Line {i + 1} of a patch is no file header: {lines[i].rstrip()!r}.")
        if not lines[i + 1].startswith("+++ "):
            raise UserError(f"Line {i + 2} of a patch should start with '+++ '.")
        old, new = _path(lines[i]), _path(lines[i + 1])
        if new == "/dev/null" or (old not in ("/dev/null", new)):
            raise UserError(f"A patch deletes or renames {old}, which is not supported.")
        i += 2
        hunks: list[Hunk] = []
        while i < len(lines) and lines[i].startswith("@@"):
            hunk, i = _hunk(lines, i)
            hunks.append(hunk)
        if any(diff.path == new for diff in files):
            raise UserError(f"A patch names {new} twice.", "Join its hunks.")
        if not hunks:
            raise UserError(f"A patch names {new} and changes nothing in it.")
        files.append(FileDiff(new, old == "/dev/null", tuple(hunks)))
    if not files:
        raise UserError("A patch changes no file.", "Restore it from the repository.")
    return "".join(lines[:first]), files


def _hunk(lines: list[str], i: int) -> tuple[Hunk, int]:
    match = _HUNK.match(lines[i])
    if match is None:
        raise UserError(f"Line {i + 1} of a patch is no hunk header: {lines[i].rstrip()!r}.")
    want_old, want_new = (1 if n is None else int(n) for n in (match[2], match[4]))
    at = i + 1
    i += 1
    old: list[str] = []
    new: list[str] = []
    while len(old) < want_old or len(new) < want_new:
        if i >= len(lines):
            raise UserError(f"The hunk at line {at} of a patch ends too early.")
        mark, body = lines[i][:1], lines[i][1:]
        bare = i + 1 < len(lines) and lines[i + 1].startswith(_NO_NEWLINE)
        if bare:
            body = body.removesuffix("\n")
        if mark not in {" ", "-", "+"}:
            raise UserError(f"Line {i + 1} of a patch is neither context nor change.")
        if mark in {" ", "-"}:
            old.append(body)
        if mark in {" ", "+"}:
            new.append(body)
        i += 2 if bare else 1
    if (len(old), len(new)) != (want_old, want_new):
        raise UserError(f"The hunk at line {at} of a patch does not have the lengths it states.")
    return Hunk(int(match[1]), tuple(old), tuple(new)), i


def patched(content: str | None, diff: FileDiff) -> str:
    """Return ``content`` with ``diff`` applied.

    Args:
        content: The file before; None where it does not exist.

    Raises:
        UserError: a hunk's old lines are not exactly at the stated place, or the file's existence is not as stated.
    """
    if (content is None) != diff.creates:
        state = "does not exist" if content is None else "exists already"
        raise UserError(f"{diff.path} {state}.", "Reinstall SGLang and apply the series again.")
    lines = split_lines(content or "")
    out: list[str] = []
    at = 0
    for hunk in diff.hunks:
        begin = hunk.start - 1 if hunk.old else hunk.start
        if begin < at or tuple(lines[begin : begin + len(hunk.old)]) != hunk.old:
            raise UserError(
                f"The lines at {diff.path}:{hunk.start} are not those that the patch changes.",
                "Reinstall SGLang and apply the series again.",
            )
        out += lines[at:begin]
        out += hunk.new
        at = begin + len(hunk.old)
    return "".join(out + lines[at:])


def reverse(diff: FileDiff) -> FileDiff:
    """Return the diff that takes ``diff`` back. That of a created file leaves an empty file."""
    hunks = []
    shift = 0
    for hunk in diff.hunks:
        begin = (hunk.start - 1 if hunk.old else hunk.start) + shift
        hunks.append(Hunk(begin + 1 if hunk.new else begin, hunk.new, hunk.old))
        shift += len(hunk.new) - len(hunk.old)
    return FileDiff(diff.path, False, tuple(hunks))
