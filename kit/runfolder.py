"""Write and read run folders. Records are appended as they come; nothing measured is lost to a crash.

Each record is one write to the kernel, so a killed kit loses none that was appended. Launches, levels and failures
are also forced to the disk, with every request before them, so a power cut loses at most the pass that was being
measured. One process writes a run folder at a time: it holds a lock that the kernel drops when it dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson
from pydantic import ValidationError

from kit.attempts import settle
from kit.errors import UserError
from kit.interrupts import interrupt_held_back
from kit.records import (
    SCHEMA,
    AnyRecord,
    FailureRecord,
    LaunchRecord,
    LevelRecord,
    Manifest,
    RequestRecord,
    ResumeRecord,
    RunData,
    record_adapter,
)
from kit.secrets import scrub_bytes
from kit.telemetry.files import read_telemetry

MANIFEST = "run.json"
SAMPLES = "samples.jsonl"
VERDICT = "verdict.json"
LOGS = "logs"
# A line of samples.jsonl is below 20 KB (a failure with its log tail); nothing longer is one.
LINE_LIMIT = 1 << 20
MANIFEST_LIMIT = 16 << 20


def _full(error: OSError, path: Path) -> UserError:
    return UserError(
        f"Cannot write {path}: {error.strerror or error}.",
        "Free some space or choose another folder with --out; what was written before is kept.",
    )


def write_atomic(path: Path, data: bytes) -> None:
    """Write ``data`` so that a reader sees the old file or the new one, never half of it.

    Raises:
        UserError: the disk is full or the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with interrupt_held_back():
        _write_atomic(path, temporary, data)


def _write_atomic(path: Path, temporary: Path, data: bytes) -> None:
    try:
        # Whatever lies there under that name was not made by this process; a link would lead elsewhere.
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:
            file.write(scrub_bytes(data))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise _full(error, path) from None


def _sync_folder(path: Path) -> None:
    """Force a folder's list of names to the disk, where the file system can."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def is_being_written(path: Path) -> bool:
    """Return whether a living process writes the run folder ``path``."""
    try:
        with (path / SAMPLES).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def dump(value: Any) -> bytes:
    """Return indented JSON of a model or plain data, with a newline at the end."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json", by_alias=True)
    return orjson.dumps(
        value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS
    )


class RunFolder:
    """A run folder that is being written."""

    def __init__(self, path: Path) -> None:
        """Open a run folder for writing.

        Raises:
            UserError: another process writes it, or it cannot be written.
        """
        self.path = path
        self.start = 0
        try:
            # Unbuffered: each record is one write, and the kernel keeps it if this process is killed.
            self._file = (path / SAMPLES).open("ab", buffering=0)
        except OSError as error:
            raise _full(error, path / SAMPLES) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise UserError(
                f"Another kit is writing the run folder {path}.",
                "Wait until it is done, or stop it first.",
            ) from None
        except OSError:
            # A file system without locks: the folder's fresh name keeps others away.
            pass

    @classmethod
    def create(cls, parent: Path, rig: str, now: datetime | None = None) -> RunFolder:
        """Make ``PARENT/<UTC time>-<rig>`` and return it.

        Raises:
            UserError: the folder cannot be made.
        """
        stamp = (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
        try:
            parent.mkdir(parents=True, exist_ok=True)
            for suffix in ("", *(f"-{n}" for n in range(2, 100))):
                path = parent / f"{stamp}-{rig}{suffix}"
                try:
                    path.mkdir()
                except FileExistsError:
                    continue
                (path / LOGS).mkdir()
                _sync_folder(parent)
                return cls(path)
        except OSError as error:
            raise _full(error, parent) from None
        raise UserError(f"There are too many run folders named {stamp}-{rig} in {parent}.")

    @classmethod
    def reopen(cls, path: Path, start: int, command: Sequence[str], now: float) -> RunFolder:
        """Go on with a run folder: mend its last line and append a resume record.

        Args:
            path: The run folder.
            start: How often it was taken up again, this time included.
            command: The command line.
            now: Unix time.

        Raises:
            UserError: another process writes it, or it cannot be written.
        """
        for entry in path.rglob("*"):
            if entry.is_symlink():
                raise UserError(
                    f"The run folder {path} holds a link ({entry.relative_to(path)}): it was not made by this kit.",
                    "Go on only with run folders that you made; this one can be judged with `kit check`.",
                )
        folder = cls(path)
        folder.start = start
        try:
            cut = _mend(path / SAMPLES)
            (path / LOGS).mkdir(exist_ok=True)
        except OSError as error:
            folder.close()
            raise _full(error, path / SAMPLES) from None
        folder.append(ResumeRecord(t=now, start=start, cut_bytes=cut, command=list(command)))
        return folder

    def log_path(self, scenario: str, launch: int) -> Path:
        """Return the log file of one server start: another one after each resumption."""
        again = f"-resume{self.start}" if self.start else ""
        return self.path / LOGS / f"{scenario}-{launch}{again}.log"

    def write_manifest(self, manifest: Manifest) -> None:
        """Replace ``run.json``."""
        write_atomic(self.path / MANIFEST, dump(manifest))

    def append(
        self,
        record: LaunchRecord | RequestRecord | LevelRecord | FailureRecord | ResumeRecord,
    ) -> None:
        """Append one record; it reaches the disk at the latest with the next record that is not a request.

        Raises:
            UserError: the disk is full. No part of the record is in the file then.
        """
        line = scrub_bytes(
            orjson.dumps(record.model_dump(mode="json"), option=orjson.OPT_APPEND_NEWLINE)
        )
        try:
            self._write(line)
            if not isinstance(record, RequestRecord):
                os.fsync(self._file.fileno())
        except OSError as error:
            raise _full(error, self.path / SAMPLES) from None

    def _write(self, line: bytes) -> None:
        handle = self._file.fileno()
        size = os.fstat(handle).st_size
        left = memoryview(line)
        try:
            while left:
                left = left[os.write(handle, left) :]
        except BaseException:
            # Half a line would swallow the next one.
            with contextlib.suppress(OSError):
                os.ftruncate(handle, size)
            raise

    def close(self) -> None:
        """Close; safe to call twice, and silent if the disk is full (that was said before)."""
        with contextlib.suppress(OSError):
            self._file.close()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _mend(path: Path) -> int:
    """End a file of records with a whole line. Returns the bytes of the half line that was cut, 0 if none was."""
    with path.open("r+b") as file:
        begin = last_line = 0
        for line in file:
            begin, last_line = last_line, last_line + len(line)
        file.seek(begin)
        tail = file.read()
        if not tail or tail.endswith(b"\n"):
            return 0
        if _parse(tail) is not None:
            # Whole but for its newline.
            file.write(b"\n")
            return 0
        file.truncate(begin)
        return len(tail)


def _parse(line: bytes) -> AnyRecord | None:
    try:
        return record_adapter.validate_python(orjson.loads(line))
    except (ValueError, ValidationError):
        return None


def _read_samples(path: Path) -> tuple[list[AnyRecord], int]:
    """Return the records and how many lines could not be read (a killed writer leaves at most one)."""
    records: list[AnyRecord] = []
    bad = 0
    try:
        with path.open("rb") as file:
            while line := file.readline(LINE_LIMIT):
                record = _parse(line)
                if record is None:
                    bad += 1
                else:
                    records.append(record)
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror or error}.") from None
    return records, bad


def read_manifest(path: Path) -> Manifest:
    """Read ``run.json`` of the run folder ``path``.

    Raises:
        UserError: no run folder, not readable, or written by a newer kit.
    """
    file = path / MANIFEST
    try:
        with file.open("rb") as opened:
            raw = opened.read(MANIFEST_LIMIT + 1)
        if len(raw) > MANIFEST_LIMIT:
            raise ValueError(f"it is larger than {MANIFEST_LIMIT} bytes")
        data = orjson.loads(raw)
        if (
            isinstance(data, dict)
            and isinstance(data.get("schema"), int)
            and data["schema"] > SCHEMA
        ):
            raise UserError(
                f"The run {path} has schema {data['schema']}; this kit reads up to {SCHEMA}.",
                "Use a newer kit.",
            )
        return Manifest.model_validate(data)
    except FileNotFoundError:
        begun = (path / SAMPLES).is_file()
        raise UserError(
            f"{path} is not a run folder: it has no {MANIFEST}.",
            "Its kit was ended before anything was measured; `kit clean` offers to remove it."
            if begun
            else "",
        ) from None
    except (OSError, ValueError) as error:
        text = str(error).split("\n")[0]
        raise UserError(
            f"{file} cannot be read: {text}.", "Is it a run folder of this kit?"
        ) from None


def read_run(path: Path) -> RunData:
    """Read a run folder, complete or cut short.

    Raises:
        UserError: it is not a run folder, or was written by a newer kit.
    """
    manifest = read_manifest(path)
    everything, bad = _read_samples(path / SAMPLES)
    settled = settle(everything)
    records = settled.records
    header, telemetry = read_telemetry(path)
    return RunData(
        manifest=manifest,
        launches=[r for r in records if isinstance(r, LaunchRecord)],
        requests=[r for r in records if isinstance(r, RequestRecord)],
        levels=[r for r in records if isinstance(r, LevelRecord)],
        failures=[r for r in records if isinstance(r, FailureRecord)],
        truncated_lines=bad,
        telemetry_header=header,
        telemetry=telemetry,
        resumes=settled.resumes,
        set_aside=settled.set_aside,
        healed=settled.healed,
        being_written=manifest.status == "running" and is_being_written(path),
    )


_RUN_NAME = re.compile(r"^\d{8}T\d{6}Z-[a-z0-9-]+$")


def latest_run(parent: Path, rig: str = "") -> Path | None:
    """Return the newest run folder in ``parent``, of ``rig`` if one is named; None if there is none."""
    if not parent.is_dir():
        return None
    found = sorted(
        p for p in parent.iterdir() if _RUN_NAME.match(p.name) and (p / MANIFEST).is_file()
    )
    if rig:
        found = [p for p in found if re.fullmatch(rf"[^-]+-{re.escape(rig)}(-\d{{1,2}})?", p.name)]
    return found[-1] if found else None
