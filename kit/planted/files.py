"""A pair's folder: its manifest, whether it is intact, and writing it all or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from safetensors import SafetensorError

from kit.errors import UserError
from kit.planted.spec import FORMAT, PairSpec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MANIFEST = "pair.json"
_HASHERS = min(8, os.cpu_count() or 1)


def sha256(file: Path) -> str:
    """Checksum of a file, hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sums(files: list[Path]) -> list[str]:
    with ThreadPoolExecutor(
        max_workers=_HASHERS
    ) as pool:  # hashing runs outside the interpreter lock
        return list(pool.map(sha256, files))


def write_json(file: Path, data: dict[str, Any]) -> None:
    """Write indented JSON with a final newline; the bytes depend on the data alone."""
    file.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_manifest(folder: Path, spec: PairSpec, facts: dict[str, Any]) -> None:
    """Write pair.json: spec, format, facts about the construction, and size and checksum of every
    file."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST)
    sums = _sums(files)
    write_json(
        folder / MANIFEST,
        {
            "format": FORMAT,
            "spec": spec.model_dump(mode="json"),
            **facts,
            "files": {
                str(file.relative_to(folder)): {"bytes": file.stat().st_size, "sha256": checksum}
                for file, checksum in zip(files, sums, strict=True)
            },
        },
    )


def read_manifest(folder: Path) -> dict[str, Any]:
    """pair.json of a folder.

    Raises:
        UserError: There is none, or it is not one of this version.
    """
    file = folder / MANIFEST
    remedy = "Make the pair again with `kit pair make`."
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as err:
        raise UserError(
            f"There is no planted pair in {folder}: {MANIFEST} is missing.", remedy
        ) from err
    except (OSError, ValueError) as err:
        raise UserError(f"{file} cannot be read ({err}).", remedy) from err
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UserError(f"{file} is not of format {FORMAT}, the one this kit makes.", remedy)
    return data


def damage(folder: Path) -> str | None:
    """What is wrong with a pair's folder (a phrase), None if nothing: all sizes, then all
    checksums."""
    try:
        manifest = read_manifest(folder)
        PairSpec.model_validate(manifest["spec"])
        expected = {
            str(n): (int(f["bytes"]), str(f["sha256"])) for n, f in manifest["files"].items()
        }
    except UserError as err:
        return err.sentence
    except (KeyError, TypeError, ValueError, AttributeError, ValidationError) as err:
        return f"{MANIFEST} is damaged ({err})"
    for name, (size, _) in expected.items():
        file = folder / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes, not {size}"
    sums = _sums([folder / name for name in expected])
    wrong = [name for name, got in zip(expected, sums, strict=True) if got != expected[name][1]]
    return f"{wrong[0]} has another checksum" if wrong else None


def check_space(folder: Path, needed: int) -> None:
    """Raise UserError unless ``needed`` bytes are free where ``folder`` is."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"The planted pair needs {needed / 1e9:.2f} GB in {folder}, "
            f"but {free / 1e9:.2f} GB are free.",
            "Free some space, choose another folder or a smaller pair.",
        )


@contextlib.contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """A fresh folder beside ``out`` that takes its place if the block succeeds and vanishes if it
    does not.

    Anything a killed process left of an earlier attempt is removed first. Callers hold
    :func:`locked`.
    """
    partial = out.parent / f".{out.name}.partial"
    aside = out.parent / f".{out.name}.old"
    try:
        for leftover in (partial, aside):
            if leftover.exists():
                shutil.rmtree(leftover)
        partial.mkdir()
        yield partial
        if out.exists():
            out.rename(aside)
        partial.rename(out)
        shutil.rmtree(aside, ignore_errors=True)
    except OSError as err:
        raise _explained(err, out) from err
    except SafetensorError as err:
        # safetensors keeps the number of the system's error in the message only.
        number = re.search(r"os error (\d+)", str(err))
        if number is None:
            raise
        raise _explained(OSError(int(number[1]), os.strerror(int(number[1]))), out) from err
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def locked(parent: Path) -> Iterator[None]:
    """Only one process makes a pair in a folder at a time; a dead one holds nothing."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as err:
        raise _explained(err, parent) from err
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _explained(err: OSError, folder: Path) -> UserError:
    if err.errno in (errno.ENOSPC, errno.EDQUOT):
        return UserError(
            f"The disk of {folder.parent} is full: the planted pair was not written.",
            "Free some space, choose another folder or a smaller pair.",
        )
    return UserError(
        f"The planted pair cannot be written to {folder} ({err.strerror or err}).",
        "Choose another folder or mend its permissions.",
    )
