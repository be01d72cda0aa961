from __future__ import annotations

import errno
import os
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
    before = (folder.path / SAMPLES).read_bytes()
    real, calls = os.write, []

    def half_then_full(handle: int, data: bytes) -> int:
        calls.append(handle)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle, bytes(data)[:40])

    with monkeypatch.context() as patch:
        patch.setattr("kit.runfolder.os.write", half_then_full)
        with pytest.raises(UserError, match="No space left on device"):
            folder.append(level_record(sweep=1))
    # No half line is left for the next record to be glued to.
    assert (folder.path / SAMPLES).read_bytes() == before
    folder.append(level_record(sweep=2))
    folder.close()
    assert [r.sweep for r in read_run(folder.path).levels] == [0, 2]


def test_a_record_is_with_the_kernel_when_append_returns(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "cpu") as folder:
        folder.write_manifest(manifest())
        folder.append(request_record())
        # Read through another handle, while the writer has neither flushed nor closed.
        assert len(read_run(folder.path).requests) == 1


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "cpu") as folder:
        folder.write_manifest(manifest(status="running"))
        assert read_run(folder.path).being_written
        with pytest.raises(UserError, match="Another kit is writing"):
            RunFolder.reopen(folder.path, 1, [], 0.0)
    assert not read_run(folder.path).being_written
    RunFolder.reopen(folder.path, 1, [], 0.0).close()


@given(st.data())
def test_a_file_cut_anywhere_is_mended_and_goes_on(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = filled(tmp_path_factory.mktemp("mend"))
    whole = (path / SAMPLES).read_bytes()
    at = data.draw(st.integers(0, len(whole)))
    (path / SAMPLES).write_bytes(whole[:at])
    before = read_run(path)
    with RunFolder.reopen(path, 1, ["kit"], 5.0) as folder:
        folder.append(level_record(sweep=7))
    after = read_run(path)
    assert after.truncated_lines == 0
    assert after.resumes == 1
    assert [r.sweep for r in after.levels if r.sweep == 7] == [7]
    assert len(after.requests) + len(after.set_aside) == len(before.requests)


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
