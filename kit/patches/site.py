"""Apply, revert and verify the series in a site-packages folder. SGLang is never imported."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import re
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kit.errors import UserError
from kit.patches.diff import patched, reverse
from kit.patches.series import (
    VERSION,
    FileStates,
    Patch,
    available,
    checksums,
    sha256,
)


@dataclass(frozen=True)
class PatchState:
    """Whether one patch is in a site: ``live`` when every file it touches carries it."""

    id: str
    title: str
    live: bool
    files: tuple[str, ...]

    def line(self) -> str:
        """Return one printable line."""
        return f"{self.id}  {'live' if self.live else 'not applied':<11}  {self.title}"


@dataclass(frozen=True)
class FileReport:
    """One file of a site: ``done`` of ``total`` of its patches are in; ``done`` is None for an unknown state."""

    path: str
    done: int | None
    total: int

    def line(self) -> str:
        """Return one printable line."""
        if self.done is None:
            state = "CHANGED by something else"
        elif self.done == self.total:
            state = "patched"
        else:
            state = "pristine" if self.done == 0 else f"{self.done} of {self.total} patches"
        return f"{state:<25} {self.path}"


@dataclass(frozen=True)
class Outcome:
    """What ``apply`` or ``revert`` did: the files it changed (or would change)."""

    site: Path
    changed: tuple[str, ...]
    dry_run: bool
    states: tuple[PatchState, ...]

    def lines(self) -> list[str]:
        """Return printable lines."""
        verb = "would change" if self.dry_run else "changed"
        head = (
            f"{verb} {len(self.changed)} files in {self.site}"
            if self.changed
            else f"nothing to do in {self.site}"
        )
        return [head, *(f"  {path}" for path in self.changed), *(s.line() for s in self.states)]


@dataclass(frozen=True)
class Verification:
    """The state of a site: ``ok`` when the whole series is live and nothing else changed its files."""

    site: Path
    ok: bool
    patches: tuple[PatchState, ...]
    files: tuple[FileReport, ...]

    def lines(self) -> list[str]:
        """Return printable lines."""
        live = " ".join(p.id for p in self.patches if p.live) or "none"
        return [
            *(p.line() for p in self.patches),
            *(f.line() for f in self.files),
            f"kit patches live: {live} ({self.site})",
        ]


def find_site() -> Path:
    """Return the folder that holds the ``sglang`` that this interpreter would import.

    Raises:
        UserError: SGLang is not installed.
    """
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            "SGLang is not installed here.", "Run `make setup`, or name the folder with --site."
        )
    return Path(next(iter(spec.submodule_search_locations))).resolve().parent


def installed_version(site: Path) -> str | None:
    """Return SGLang's version in ``site`` by the name of its metadata folder, else by ``sglang/_version.py``."""
    for folder in sorted(site.glob("sglang-*.dist-info")):
        return folder.name.removeprefix("sglang-").removesuffix(".dist-info")
    try:
        text = (site / "sglang" / "_version.py").read_text("utf-8")
    except OSError:
        return None
    found = re.search(r"""^__version__ = (?:version = )?['"]([^'"]+)['"]""", text, re.MULTILINE)
    return found[1] if found else None


def _checked(site: Path | None) -> Path:
    site = site.resolve() if site else find_site()
    if not (site / "sglang").is_dir():
        raise UserError(
            f"There is no sglang folder in {site}.", "Name a site-packages folder with --site."
        )
    version = installed_version(site)
    if version != VERSION:
        raise UserError(
            f"SGLang in {site} is {version or 'of an unknown version'}, the patches are for {VERSION}.",
            f"Install sglang=={VERSION} (`make setup`).",
        )
    return site


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _reports(site: Path, states: list[FileStates]) -> list[FileReport]:
    reports = []
    for state in states:
        data = _read(site / state.path)
        done = state.index(None if data is None else sha256(data))
        reports.append(FileReport(state.path, done, len(state.after)))
    return reports


def _patch_states(
    series: list[Patch], states: list[FileStates], reports: list[FileReport]
) -> list[PatchState]:
    done = {r.path: r.done or 0 for r in reports}
    order = {s.path: [i for i, _ in s.after] for s in states}
    return [
        PatchState(
            p.id,
            p.title,
            all(p.id in order[d.path][: done[d.path]] for d in p.files),
            tuple(d.path for d in p.files),
        )
        for p in series
    ]


def live(site: Path | None = None, folder: Path | None = None) -> list[PatchState]:
    """Return for each patch whether it is live in ``site`` (default: where SGLang is found), by checksum."""
    site = _checked(site)
    states = checksums(folder)
    return _patch_states(available(folder), states, _reports(site, states))


def verify(site: Path | None = None, folder: Path | None = None) -> Verification:
    """Compare every file of the series with its recorded checksums. Nothing is written."""
    site = _checked(site)
    states = checksums(folder)
    reports = _reports(site, states)
    patches = _patch_states(available(folder), states, reports)
    ok = all(r.done == r.total for r in reports)
    return Verification(site, ok, tuple(patches), tuple(reports))


def _known(site: Path, states: list[FileStates]) -> list[FileReport]:
    reports = _reports(site, states)
    strange = [r.path for r in reports if r.done is None]
    if strange:
        raise UserError(
            f"{', '.join(strange)} in {site} is neither as released nor as patched; nothing was changed.",
            f"Reinstall sglang=={VERSION}, then run `kit patches apply`.",
        )
    return reports


def apply(
    site: Path | None = None, *, folder: Path | None = None, dry_run: bool = False
) -> Outcome:
    """Bring every file of the series to its patched state; a second call does nothing.

    All files change or none: every new content is computed and compared with its checksum before the first file is
    replaced, and a failure while replacing puts the old ones back.

    Raises:
        UserError: wrong SGLang, a file in an unknown state, or a folder that cannot be written.
    """
    site = _checked(site)
    series, states = available(folder), checksums(folder)
    reports = {r.path: r for r in _known(site, states)}
    new: dict[str, bytes | None] = {}
    for state in states:
        report = reports[state.path]
        if report.done == report.total:
            continue
        assert report.done is not None
        data = _read(site / state.path)
        text = None if data is None else data.decode("utf-8")
        todo = {i for i, _ in state.after[report.done :]}
        for patch in series:
            for diff in patch.files:
                if diff.path == state.path and patch.id in todo:
                    text = patched(text, diff)
        assert text is not None
        new[state.path] = _expected(text.encode("utf-8"), state.after[-1][1], state.path)
    return _finish(site, new, dry_run, folder)


def revert(
    site: Path | None = None, *, folder: Path | None = None, dry_run: bool = False
) -> Outcome:
    """Take the whole series back; files that it created are removed.

    Raises:
        UserError: as for :func:`apply`.
    """
    site = _checked(site)
    series, states = available(folder), checksums(folder)
    new: dict[str, bytes | None] = {}
    for report, state in zip(_known(site, states), states, strict=True):
        if not report.done:
            continue
        if state.pristine is None:
            new[state.path] = None
            continue
        text = (site / state.path).read_bytes().decode("utf-8")
        done = {i for i, _ in state.after[: report.done]}
        for patch in reversed(series):
            for diff in patch.files:
                if diff.path == state.path and patch.id in done:
                    text = patched(text, reverse(diff))
        new[state.path] = _expected(text.encode("utf-8"), state.pristine, state.path)
    return _finish(site, new, dry_run, folder)


def _expected(data: bytes, checksum: str, path: str) -> bytes:
    if sha256(data) != checksum:
        raise UserError(
            f"The series gives {path} another checksum than recorded; nothing was changed.",
            "Restore patches/ from the repository.",
        )
    return data


def _finish(
    site: Path, new: dict[str, bytes | None], dry_run: bool, folder: Path | None
) -> Outcome:
    if new and not dry_run:
        try:
            write_all(site, new)
        except OSError as e:
            raise UserError(
                f"The files of SGLang in {site} cannot be written ({e.strerror}); nothing was changed.",
                "Run as the owner of that environment.",
            ) from e
        _compile(site, new)
    return Outcome(site, tuple(new), dry_run, tuple(live(site, folder)))


def _compile(site: Path, new: dict[str, bytes | None]) -> None:
    """Renew the bytecode: where it may not be written later, each server process would compile anew."""
    ours = site == Path(sysconfig.get_paths()["purelib"]).resolve()
    for name, data in new.items():
        path = site / name
        for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            stale.unlink(missing_ok=True)
        if ours and data is not None:
            py_compile.compile(str(path), quiet=2)


def write_all(
    site: Path,
    new: dict[str, bytes | None],
    replace: Callable[[Path, Path], object] = Path.replace,
) -> None:
    """Replace files by ``new`` (None removes one), all or none.

    New contents are first written beside their files. ``replace`` is the renaming function, for tests.

    Raises:
        OSError: a file could not be written; the old files are back in place.
    """
    temporary: dict[Path, Path] = {}
    before = {site / path: _read(site / path) for path in new}
    touched: list[Path] = []
    try:
        for name, data in new.items():
            if data is not None:
                temporary[site / name] = _beside(site / name, data)
        for path in before:
            touched.append(path)
            if path in temporary:
                replace(temporary[path], path)
            else:
                path.unlink()
    except BaseException:
        for path in touched:
            old = before[path]
            if old is None:
                path.unlink(missing_ok=True)
            else:
                _beside(path, old).replace(path)
        raise
    finally:
        for path in temporary.values():
            path.unlink(missing_ok=True)


def _beside(path: Path, data: bytes) -> Path:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    with os.fdopen(handle, "wb") as f:
        f.write(data)
    temporary = Path(name)
    temporary.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o644)
    return temporary
