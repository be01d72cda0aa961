"""The set-up runs before anything is installed, and its commands answer as make expects."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kit.errors import UserError
from kit.setup_env import __main__ as entry
from kit.setup_env import build, cli

ROOT = Path(__file__).resolve().parent.parent
# Imports every module of the set-up and prints what came along that is not Python's own.
FOREIGN = """
import importlib, pkgutil, sys
import kit.setup_env
for module in pkgutil.iter_modules(kit.setup_env.__path__):
    importlib.import_module("kit.setup_env." + module.name)
loaded = {name.split(".")[0] for name in sys.modules}
print(*sorted(loaded - sys.stdlib_module_names - {"kit", "__main__"}))
print(*sorted(name for name in sys.modules if name.startswith("kit.")))
"""


def test_only_the_standard_library_is_imported() -> None:
    # -S leaves site-packages out, -E whatever the environment points at.
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-c", FOREIGN],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    foreign, own = done.stdout.splitlines()
    assert foreign == ""
    outside = [name for name in own.split() if not name.startswith("kit.setup_env")]
    assert outside == ["kit.errors"]


def test_make_alone_lists_the_targets() -> None:
    done = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = [line.split()[1] for line in done.stdout.splitlines()]
    assert listed == ["help", "setup", "reproduce", "lint", "test", "lock", "clean"]


@pytest.mark.parametrize("target", ["reproduce", "test", "lint"])
def test_targets_set_up_first(target: str) -> None:
    done = subprocess.run(
        ["make", "--dry-run", target, "PYTHON=some-python"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[0] == "some-python -m kit.setup_env setup"


def test_arguments_reach_the_command() -> None:
    done = subprocess.run(
        ["make", "--dry-run", "reproduce", "ARGS=--rig cpu"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "kit reproduce --rig cpu" in done.stdout


def test_an_unknown_command_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["frobnicate"]) == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "code", "words"),
    [
        (UserError("It is broken.", "Mend it."), 2, "It is broken.\nMend it."),
        (KeyboardInterrupt(), 130, "interrupted"),
        (PermissionError(13, "Permission denied", "/x/.venv"), 2, "Permission denied (/x/.venv)"),
    ],
)
def test_trouble_is_a_sentence_and_a_code(
    raised: BaseException,
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise raised

    monkeypatch.setattr(build, "set_up", fail)
    assert cli.run(["setup"]) == code
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said


def test_an_old_python_changes_over_to_a_supported_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim = tmp_path / "python3.11"
    shim.write_text("#!/bin/sh\nexit 127\n")
    working = tmp_path / "python3.12"
    working.write_text("#!/bin/sh\nexit 0\n")
    for path in (shim, working):
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    called: list[list[str]] = []

    def execv(_path: str, arguments: list[str]) -> None:
        called.append(arguments)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setattr(sys, "argv", ["kit.setup_env", "setup"])
    with pytest.raises(SystemExit):
        entry.main()
    assert called == [[str(working), "-m", "kit.setup_env", "setup"]]


def test_no_supported_python_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    assert entry.main() == 2
    assert "needs Python 3.11 or 3.12, and this is 3.9.2" in capsys.readouterr().err
