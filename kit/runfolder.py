"""Write and read run folders. Records are appended as they come; nothing measured is lost to a crash."""

from __future__ import annotations

import contextlib
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson
from pydantic import ValidationError

from kit.errors import UserError
from kit.records import (
    SCHEMA,
    AnyRecord,
    FailureRecord,
    LaunchRecord,
    LevelRecord,
    Manifest,
    RequestRecord,
    RunData,
    record_adapter,
)

MANIFEST = "run.json"
SAMPLES = "samples.jsonl"
VERDICT = "verdict.json"
LOGS = "logs"


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
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _full(error, path) from None


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
        self.path = path
        self._file = (path / SAMPLES).open("ab")

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
                return cls(path)
        except OSError as error:
            raise _full(error, parent) from None
        raise UserError(f"There are too many run folders named {stamp}-{rig} in {parent}.")

    def log_path(self, scenario: str, launch: int) -> Path:
        """Return the log file of one server start."""
        return self.path / LOGS / f"{scenario}-{launch}.log"

    def write_manifest(self, manifest: Manifest) -> None:
        """Replace ``run.json``."""
        write_atomic(self.path / MANIFEST, dump(manifest))

    def append(self, record: LaunchRecord | RequestRecord | LevelRecord | FailureRecord) -> None:
        """Append one record; it reaches the disk at the latest with the next level record.

        Raises:
            UserError: the disk is full.
        """
        line = orjson.dumps(record.model_dump(mode="json"), option=orjson.OPT_APPEND_NEWLINE)
        try:
            self._file.write(line)
            if not isinstance(record, RequestRecord):
                self._file.flush()
                os.fsync(self._file.fileno())
        except OSError as error:
            raise _full(error, self.path / SAMPLES) from None

    def close(self) -> None:
        """Flush and close; safe to call twice, and silent if the disk is full (that was said before)."""
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


def _read_samples(path: Path) -> tuple[list[AnyRecord], int]:
    """Return the records and how many lines could not be read (a killed writer leaves at most one)."""
    records: list[AnyRecord] = []
    bad = 0
    try:
        with path.open("rb") as file:
            for line in file:
                try:
                    records.append(record_adapter.validate_python(orjson.loads(line)))
                except (ValueError, ValidationError):
                    bad += 1
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
        data = orjson.loads(file.read_bytes())
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
        raise UserError(f"{path} is not a run folder: it has no {MANIFEST}.") from None
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
    records, bad = _read_samples(path / SAMPLES)
    return RunData(
        manifest=manifest,
        launches=[r for r in records if isinstance(r, LaunchRecord)],
        requests=[r for r in records if isinstance(r, RequestRecord)],
        levels=[r for r in records if isinstance(r, LevelRecord)],
        failures=[r for r in records if isinstance(r, FailureRecord)],
        truncated_lines=bad,
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
