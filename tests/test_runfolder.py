from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import UserError
from kit.runfolder import MANIFEST, SAMPLES, RunFolder, latest_run, read_run
from tests.factory import level_record, manifest, request_record


def filled(tmp_path: Path) -> Path:
    with RunFolder.create(tmp_path, "cpu") as folder:
        folder.write_manifest(manifest())
        for i in range(3):
            folder.append(request_record(index=i))
        folder.append(level_record())
    return folder.path


def test_round_trip(tmp_path: Path) -> None:
    run = read_run(filled(tmp_path))
    assert run.manifest == manifest()
    assert run.requests == [request_record(index=i) for i in range(3)]
    assert run.levels == [level_record()]
    assert run.truncated_lines == 0


@given(st.data())
def test_cut_anywhere_it_reads_what_is_whole(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = filled(tmp_path_factory.mktemp("cut"))
    whole = (path / SAMPLES).read_bytes()
    at = data.draw(st.integers(0, len(whole)))
    (path / SAMPLES).write_bytes(whole[:at])
    run = read_run(path)
    complete = whole[:at].count(b"\n")
    got = len(run.requests) + len(run.levels)
    # A line that lacks only its newline is whole.
    assert got in (complete, complete + 1)
    assert run.truncated_lines <= 1


def test_two_runs_in_one_second_get_two_folders(tmp_path: Path) -> None:
    paths = set()
    for _ in range(3):
        with RunFolder.create(tmp_path, "cpu") as folder:
            paths.add(folder.path)
    assert len(paths) == 3


def test_latest_run(tmp_path: Path) -> None:
    assert latest_run(tmp_path) is None
    assert latest_run(tmp_path / "none") is None
    path = filled(tmp_path)
    (tmp_path / "zzz").mkdir()
    assert latest_run(tmp_path) == path


def test_not_a_run_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        read_run(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 1}', "\x00"])
def test_broken_manifest_is_said(tmp_path: Path, text: str) -> None:
    path = filled(tmp_path)
    (path / MANIFEST).write_text(text)
    with pytest.raises(UserError, match="cannot be read"):
        read_run(path)


def test_newer_schema_is_said(tmp_path: Path) -> None:
    path = filled(tmp_path)
    (path / MANIFEST).write_text('{"schema": 99}')
    with pytest.raises(UserError, match="schema 99"):
        read_run(path)


def test_full_disk_is_one_sentence_and_keeps_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder.create(tmp_path, "cpu")
    folder.write_manifest(manifest())
    folder.append(level_record())
    real = folder._file

    class Full:
        def write(self, _: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            real.close()

    monkeypatch.setattr(folder, "_file", Full())
    with pytest.raises(UserError, match="No space left on device"):
        folder.append(level_record(sweep=1))
    folder.close()
    assert len(read_run(folder.path).levels) == 1


def test_unwritable_parent_is_said(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(UserError, match="Cannot write"):
        RunFolder.create(blocker / "runs", "cpu")


json_values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
)


@given(st.lists(st.binary(max_size=60) | json_values.map(lambda v: repr(v).encode()), max_size=5))
def test_any_samples_file_reads_without_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    path = filled(tmp_path_factory.mktemp("fuzz"))
    (path / SAMPLES).write_bytes(b"\n".join(lines))
    run = read_run(path)
    assert run.levels == []
