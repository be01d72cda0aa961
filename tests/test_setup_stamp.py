"""When a set-up has nothing to do, and when it has."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from kit.setup_env import stamp

if TYPE_CHECKING:
    from pathlib import Path

PYPROJECT = """
[project]
name = "kit"
version = "0.1.0"
dependencies = ["click>=8.1"]

[project.scripts]
kit = "kit.cli:main"

[tool.ruff]
line-length = 100
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "lock.txt").write_text("click==8.4.1\n")
    return tmp_path


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    folder = tmp_path / ".venv"
    (folder / "bin").mkdir(parents=True)
    for name in ("python", "kit"):
        (folder / "bin" / name).touch(mode=0o755)
    return folder


def inputs(checkout: Path, python: str = "3.11.2 /usr/bin/python3.11") -> dict[str, object]:
    return stamp.expected(checkout, [checkout / "lock.txt"], python)


def test_a_finished_environment_is_fresh(checkout: Path, venv: Path) -> None:
    stamp.write(venv, inputs(checkout), {"torch": "wheel"})
    assert stamp.is_fresh(venv, inputs(checkout))


def test_another_lock_makes_it_stale(checkout: Path, venv: Path) -> None:
    stamp.write(venv, inputs(checkout), {})
    (checkout / "lock.txt").write_text("click==8.4.2\n")
    assert not stamp.is_fresh(venv, inputs(checkout))


@pytest.mark.parametrize("name", ["0001-a.patch", "series", "checksums.json"])
def test_another_patch_makes_it_stale(checkout: Path, venv: Path, name: str) -> None:
    (checkout / "patches").mkdir()
    for each in ("0001-a.patch", "series", "checksums.json", "README.md"):
        (checkout / "patches" / each).write_text("old\n")
    stamp.write(venv, inputs(checkout), {})
    (checkout / "patches" / "README.md").write_text("only words\n")
    assert stamp.is_fresh(venv, inputs(checkout))
    (checkout / "patches" / name).write_text("new\n")
    assert not stamp.is_fresh(venv, inputs(checkout))


@pytest.mark.parametrize(
    ("old", "new"),
    [("click>=8.1", "click>=8.2"), ("kit.cli:main", "kit.cli:other"), ("0.1.0", "0.2.0")],
)
def test_another_project_makes_it_stale(old: str, new: str, checkout: Path, venv: Path) -> None:
    stamp.write(venv, inputs(checkout), {})
    (checkout / "pyproject.toml").write_text(PYPROJECT.replace(old, new))
    assert not stamp.is_fresh(venv, inputs(checkout))


def test_tool_settings_do_not(checkout: Path, venv: Path) -> None:
    stamp.write(venv, inputs(checkout), {})
    (checkout / "pyproject.toml").write_text(PYPROJECT.replace("100", "120"))
    assert stamp.is_fresh(venv, inputs(checkout))


def test_another_python_makes_it_stale(checkout: Path, venv: Path) -> None:
    stamp.write(venv, inputs(checkout), {})
    assert not stamp.is_fresh(venv, inputs(checkout, "3.12.1 /usr/bin/python3.12"))


def test_a_moved_checkout_makes_it_stale(checkout: Path, venv: Path) -> None:
    stamp.write(venv, inputs(checkout), {})
    moved = checkout.with_name("moved")
    shutil.copytree(checkout, moved)
    assert not stamp.is_fresh(moved / ".venv", inputs(moved))


@pytest.mark.parametrize("content", [None, "", "[]", '{"inputs": null}', "{"])
def test_no_stamp_or_a_broken_one_is_stale(content: str | None, checkout: Path, venv: Path) -> None:
    if content is not None:
        (venv / stamp.STAMP).write_text(content)
    assert not stamp.is_fresh(venv, inputs(checkout))


@pytest.mark.parametrize("name", ["python", "kit"])
def test_a_missing_command_makes_it_stale(name: str, checkout: Path, venv: Path) -> None:
    stamp.write(venv, inputs(checkout), {})
    (venv / "bin" / name).unlink()
    assert not stamp.is_fresh(venv, inputs(checkout))
