"""CITATION.cff, CHANGELOG, make's help, and that no page tells of the machine it was written on."""

from __future__ import annotations

import re
import subprocess
import tomllib
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from kit.cli import SECTIONS, cli
from tests.docs.blocks import ROOT, pages


def test_citation_agrees_with_the_package() -> None:
    cff: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert cff["version"] == project["version"]
    assert cff["license"] == project["license"]
    assert {"cff-version", "message", "title", "authors", "date-released"} <= set(cff)


def test_every_target_of_make_is_in_its_help() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.M)
    assert phony is not None
    shown = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for target in phony[1].split():
        assert re.search(rf"^  make {target} .+\S", shown, re.M), target


def test_help_of_kit_is_a_page_and_lists_every_command_once() -> None:
    text = CliRunner().invoke(cli, ["--help"]).output
    assert len(text.splitlines()) <= 60
    named = [name for _, names in SECTIONS for name in names]
    assert sorted(named) == sorted(set(named))
    assert set(named) == set(cli.commands)


def _leaves(group: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name, command in group.commands.items():
        below = getattr(command, "commands", None)
        found += _leaves(command, (*path, name)) if below else [(*path, name)]
    return found


@pytest.mark.parametrize("path", _leaves(cli), ids=" ".join)
def test_each_command_shows_an_example_of_itself(path: tuple[str, ...]) -> None:
    text = CliRunner().invoke(cli, [*path, "--help"]).output
    assert re.search(r"Examples?:", text), text
    assert f"kit {' '.join(path)}" in text


def test_no_page_names_the_machine_it_was_written_on() -> None:
    files = [*pages(), ROOT / "CHANGELOG.md", ROOT / "CITATION.cff"]
    for path in files:
        assert not re.search(r"(?<![\w.])/(work|root|tmp/lab|home/\w+)/", path.read_text()), path
