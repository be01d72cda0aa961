"""The patch series: what each patch is, and the state of every file along the series."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from kit.errors import UserError
from kit.patches.diff import FileDiff, parse, patched
from kit.paths import project_root

VERSION = "0.5.12.post1"
CHECKSUMS = "checksums.json"


@dataclass(frozen=True)
class Patch:
    """One patch of the series.

    Args:
        id: Four digits.
        name: File name in ``patches/``.
        title: First line of the header.
        header: Fields of the header (``What``, ``Why``, ``Switch``, ``Tested``, ``Upstream``, ``Removal``).
        files: Its file diffs.
    """

    id: str
    name: str
    title: str
    header: dict[str, str]
    files: tuple[FileDiff, ...]


FIELDS = ("What", "Why", "Switch", "Tested", "Not run", "Upstream", "Removal")


def _header(text: str) -> tuple[str, dict[str, str]]:
    title, _, rest = text.partition("\n")
    parts = re.split(rf"(?m)^({'|'.join(FIELDS)}): ", rest)
    fields = {
        name: " ".join(body.split()) for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }
    return title.removeprefix("Subject: ").strip(), fields


def patches_dir() -> Path:
    """Return the folder of the series (``patches/`` of the project)."""
    return project_root() / "patches"


def available(folder: Path | None = None) -> list[Patch]:
    """Return the patches in the order of ``series``.

    Raises:
        UserError: ``series`` or a patch is missing, or a patch is no strict unified diff.
    """
    folder = folder or patches_dir()
    series = folder / "series"
    if not series.is_file():
        raise UserError(f"No patch series in {folder}.", "Set KIT_HOME to a checkout of the kit.")
    found = []
    for line in series.read_text("utf-8").splitlines():
        name = line.split("#")[0].strip()
        if not name:
            continue
        path = folder / name
        if not path.is_file():
            raise UserError(
                f"The series names {name}, which is not in {folder}.", "Restore the file."
            )
        header, files = parse(path.read_bytes().decode("utf-8"))
        title, fields = _header(header)
        found.append(Patch(name[:4], name, title, fields, tuple(files)))
    return found


def sha256(content: bytes) -> str:
    """Return the hexadecimal SHA-256."""
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class FileStates:
    """The checksums of one file along the series.

    Args:
        path: Path inside site-packages.
        pristine: SHA-256 as released; None where the series creates the file.
        after: (patch id, SHA-256 once this patch and all before it are applied), in the order of the series.
    """

    path: str
    pristine: str | None
    after: tuple[tuple[str, str], ...]

    def index(self, checksum: str | None) -> int | None:
        """Return how many of the file's patches are in: 0 for pristine, None for an unknown state."""
        if checksum == self.pristine:
            return 0
        for i, (_, state) in enumerate(self.after, 1):
            if state == checksum:
                return i
        return None


def checksums(folder: Path | None = None) -> list[FileStates]:
    """Return the recorded states of every file the series touches.

    Raises:
        UserError: the record is missing or for another SGLang.
    """
    path = (folder or patches_dir()) / CHECKSUMS
    try:
        data = json.loads(path.read_text("utf-8"))
        if data["sglang"] != VERSION:
            raise UserError(
                f"{path} is for SGLang {data['sglang']}, not {VERSION}.", "Restore the file."
            )
        return [
            FileStates(name, entry["pristine"], tuple((i, s) for i, s in entry["after"]))
            for name, entry in data["files"].items()
        ]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise UserError(f"{path} cannot be read.", "Restore it from the repository.") from e


def compute_checksums(site: Path, folder: Path | None = None) -> dict[str, object]:
    """Return the content of ``checksums.json`` from a pristine ``site``; for whoever changes the series."""
    files: dict[str, dict[str, object]] = {}
    contents: dict[str, str | None] = {}
    for patch in available(folder):
        for diff in patch.files:
            if diff.path not in contents:
                path = site / diff.path
                data = path.read_bytes() if path.is_file() else None
                contents[diff.path] = None if data is None else data.decode("utf-8")
                files[diff.path] = {"pristine": None if data is None else sha256(data), "after": []}
            new = patched(contents[diff.path], diff)
            contents[diff.path] = new
            after = files[diff.path]["after"]
            assert isinstance(after, list)
            after.append([patch.id, sha256(new.encode("utf-8"))])
    return {"sglang": VERSION, "files": dict(sorted(files.items()))}
