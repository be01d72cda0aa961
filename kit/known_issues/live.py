"""Known issues in a log that is still being written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kit.known_issues import Hit, match
from kit.serverlog import Growth

# Of a line that does not end.
KEPT = 1 << 20


class Matcher:
    """Matches a stream of bytes line by line; each issue is told once.

    Args:
        installed: Versions where the server runs, see :func:`kit.known_issues.match`.
    """

    def __init__(self, installed: Mapping[str, str] | None = None) -> None:
        self._installed = installed
        self._rest = b""
        self._told: set[str] = set()

    def feed(self, chunk: bytes) -> list[Hit]:
        """Return the issues that the lines completed by ``chunk`` show for the first time."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        # A line without an end must not grow for ever; what was kept is more than is matched.
        self._rest = self._rest[:KEPT]
        text = (line.decode("utf-8", "replace") for line in lines)
        hits = match(text, installed=self._installed)
        new = [hit for hit in hits if hit.issue.id not in self._told]
        self._told |= {hit.issue.id for hit in new}
        return new


class LogFollower:
    """Reads what a log file grew by since the call before."""

    def __init__(self, path: Path, installed: Mapping[str, str] | None = None) -> None:
        self._growth = Growth(path)
        self._matcher = Matcher(installed)

    def new_hits(self) -> list[Hit]:
        """Return the issues that new lines show for the first time; none if the file cannot be read."""
        return self._matcher.feed(self._growth.read())
