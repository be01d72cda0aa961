"""The recorder of a GPU host's answers, on hosts without one and with made-up answers."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import doctor_fixture
from kit import nvml
from kit.nvml import NvmlError, RecordedNvml

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("count", [None, 0])
def test_without_a_gpu_it_says_so_in_a_sentence_and_writes_nothing(
    count: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    @contextmanager
    def none() -> Any:
        if count is None:
            raise NvmlError("NVML Shared Library Not Found")
        yield RecordedNvml({"DeviceGetCount()": count})

    out = tmp_path / "out"
    monkeypatch.setattr(nvml, "opened", none)
    monkeypatch.setattr(sys, "argv", ["doctor_fixture.py", "--out", str(out)])
    assert doctor_fixture.main() == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "run this on a GPU host" in said
    assert not out.exists()


def test_as_a_program_it_ends_with_the_same_exit_code(tmp_path: Path) -> None:
    # A stand-in for nvidia-ml-py, so that hosts with a GPU are asked the same.
    (tmp_path / "pynvml.py").write_text("def nvmlInit(): raise RuntimeError('no driver')\n")
    done = subprocess.run(
        [sys.executable, "benchmarks/gpu/doctor_fixture.py", "--out", str(tmp_path / "out")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr == "No GPU can be recorded here (no driver): run this on a GPU host.\n"
