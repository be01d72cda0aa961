"""Every command in the documentation is executed here, or at least parsed where it would take minutes or a GPU."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from kit.cli import cli
from kit.golden import Claim, golden_for
from kit.scenarios import load_rig, load_scenario
from tests.docs.blocks import ROOT, Block, Command, blocks, commands, pages

# Run for real, on copies of a real run folder.
RUN: list[tuple[str, ...]] = [
    ("scenarios",),
    ("show",),
    ("fingerprint", "show"),
    ("check",),
    ("report",),
    ("compare",),
    ("golden",),
    ("patches", "list"),
]
# Only parsed, options and types included, and why. What is in neither list is parsed too.
PARSED: dict[tuple[str, ...], str] = {
    ("reproduce",): "minutes; tests/engine and tests/test_reproduce_stub.py run it",
    ("bench",): "minutes; the same tests run it",
    ("serve",): "serves until Ctrl-C; tests/faults/test_serve.py",
    ("pair",): "half a minute each; tests/planted makes and checks pairs",
    ("image",): "builds an image; tests/docker",
    ("compose",): "writes into the checkout; tests/test_compose_render.py",
    ("lossless",): "needs real weights; tests/test_lossless.py",
    ("doctor",): "its exit code is this host's; tests/doctor",
    ("clean",): "looks for what other runs left on this host; tests/faults",
    ("patches",): "changes or judges the environment; tests/patches",
    ("report", "--open"): "opens a browser; tests/report opens it",
}
# Programs that are not the kit: what is checked instead of running them.
MAKE_RUNS = "make -n: what it would run"
VARIABLES = {"export", "git", "docker", "cd", "curl", "nvidia-smi", "sudo", "xdg-open"}

ALL = commands()


def kit_words(text: str) -> list[str] | None:
    """Return the arguments of a ``kit`` command, None if it is another program's."""
    words = shlex.split(re.split(r"\s[|>]|\s&&", text)[0])
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words.pop(0)
    if words and words[0].removeprefix(".venv/bin/") == "kit":
        return words[1:]
    return None


def begins(words: list[str], prefix: tuple[str, ...]) -> bool:
    names = [p for p in prefix if not p.startswith("-")]
    return words[: len(names)] == names and set(prefix) - set(names) <= set(words)


def reason_not_to_run(words: list[str]) -> str | None:
    if {"--help", "-h"} & set(words):
        return None
    fits = [(len(p), PARSED[p]) for p in PARSED if begins(words, p)]
    fits += [(len(p), "") for p in RUN if begins(words, p)]
    return max(fits)[1] or None if fits else "in no list here"


@pytest.fixture
def desk(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as the documentation supposes it: run folders of any name in runs/, golden/, scenarios/."""
    desk = tmp_path / "desk"
    desk.mkdir()
    (desk / "golden").symlink_to(project / "golden")
    (desk / "scenarios").symlink_to(project / "scenarios")
    (project / "patches").symlink_to(ROOT / "patches")
    source = ROOT / "tests" / "report" / "run"
    for name in ("RUN", "A", "B", "BEFORE", "AFTER", "20261201T143629Z-cpu"):
        shutil.copytree(source, desk / "runs" / name)
    for path in pages():
        for block in blocks(path):
            named = re.match(r"# (scenarios/\S+\.yaml)\n", block.text)
            if block.language == "yaml" and named:
                (desk / named[1]).write_text(block.text)
    # A golden file that the pages record in one step and use in the next.
    shutil.copy(ROOT / "tests" / "report" / "golden.yaml", project / "golden" / "mine.yaml")
    # Arrival times, which docs/client.md replays.
    (desk / "times.txt").write_text("0.0\n0.5\n")
    monkeypatch.setenv("KIT_RUNS", str(desk / "runs"))
    monkeypatch.chdir(desk)
    return desk


def parse(words: list[str]) -> None:
    """Parse a command line down to its last command, options and types included, without running it."""
    command: click.Command = cli
    context: click.Context | None = None
    name = "kit"
    while True:
        context = command.make_context(name, list(words), parent=context)
        rest = [*context._protected_args, *context.args] if isinstance(command, click.Group) else []
        if not rest:
            return
        assert isinstance(command, click.Group)
        found, sub, words = command.resolve_command(context, rest)
        assert found is not None
        assert sub is not None
        name, command = found, sub


@pytest.mark.parametrize("command", [c for c in ALL if kit_words(c.text) is not None], ids=str)
def test_kit_commands(command: Command, desk: Path) -> None:
    words = kit_words(command.text)
    assert words is not None
    if reason_not_to_run(words):
        parse(words)
        return
    result = CliRunner().invoke(cli, words)
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(
        result.exception
    )
    # 1, 3, 4 and 5 are verdicts: how this run compares is not the page's promise; 2 is a usage error.
    assert result.exit_code in (0, 1, 3, 4, 5), result.output
    assert result.output.strip()


@pytest.mark.parametrize("command", [c for c in ALL if kit_words(c.text) is None], ids=str)
def test_other_commands(command: Command, desk: Path) -> None:
    words = shlex.split(command.text)
    while words[0] in ("time", "sudo") or re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words.pop(0)
    program = words[0].removeprefix(".venv/bin/")
    if program == "make":
        # A dry run: the target exists, and its recipe takes these variables.
        done = subprocess.run(
            ["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        extra = [w.removeprefix("ARGS=") for w in words if w.startswith("ARGS=")]
        if extra and "reproduce" in words:
            parse(["reproduce", *shlex.split(extra[0])])
    elif program == "pytest":
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "--collect-only", "-q", *_on(desk, words[1:])],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "KIT_HOME": str(ROOT)},
        )
        assert done.returncode == 0, done.stdout + done.stderr
    elif program in ("python", "python3", "bash", "sh") or program.startswith(("scripts/", ".ci/")):
        script = words[1] if program in ("python", "python3", "bash", "sh") else program
        assert script == "-m" or (ROOT / script).is_file(), f"{script} does not exist"
    elif program == "docker":
        _check_docker(words)
    else:
        assert program in VARIABLES, f"{command}: say in this test how it is checked"


def _on(desk: Path, words: list[str]) -> list[str]:
    return [str(desk / w) if w.startswith("runs/") else w for w in words]


def _check_docker(words: list[str]) -> None:
    """Files that a compose command names exist, and so do its services."""
    files = [words[i + 1] for i, word in enumerate(words) if word == "-f"] or ["compose.yaml"]
    if words[1] != "compose":
        return
    services: set[str] = set()
    for name in [*files, "compose.yaml"]:
        # Compose's own tags (!override) are no YAML of the safe loader's.
        services |= set(re.findall(r"^  ([\w-]+):", (ROOT / name).read_text(), re.M))
    last = words[-1]
    if not last.startswith("-") and last not in ("up", "down", "config", "ps", "logs"):
        assert last in services


def test_there_are_commands_to_test() -> None:
    kit = [w for c in ALL if (w := kit_words(c.text)) is not None]
    assert len(kit) > 20
    ran = [w for w in kit if not reason_not_to_run(w)]
    assert len(ran) > 10


YAML = [b for path in pages() for b in blocks(path) if b.language == "yaml"]


@pytest.mark.parametrize("block", YAML, ids=lambda b: f"{b.page}:{b.line}")
def test_yaml_of_the_pages_is_what_the_kit_reads(block: Block, desk: Path) -> None:
    data: Any = yaml.safe_load(block.text)
    named = re.match(r"# scenarios/(rigs/)?(\S+)\.yaml\n", block.text)
    if named and named[1]:
        rig = load_rig(named[2])
        assert rig.name == data["name"]
        for scenario in ("baseline", "spec-v1", "spec-v2"):
            shown = CliRunner().invoke(cli, ["show", scenario, "--rig", rig.name, "--json"])
            assert shown.exit_code == 0, shown.output
            argv = json.loads(shown.output)["argv"]
            assert argv[argv.index("--tp-size") + 1] == str(rig.tensor_parallel)
    elif named:
        assert load_scenario(named[2]).name == data["name"]
    elif "claims" in data:
        assert [Claim.model_validate(c) for c in data["claims"]]
    elif block.page in ("docs/real-models.md", "docs/own-scenario-and-golden.md"):
        pytest.fail("an example that nothing reads")


def test_memory_of_the_worked_examples_is_right() -> None:
    text = (ROOT / "docs" / "real-models.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| [^|]+ \| \d+ GB \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| ([\d.]+) GiB \|$", text, re.M
    )
    assert len(rows) == 5
    for layers, heads, size, kib, gib in rows:
        token = 2 * int(layers) * int(heads) * int(size) * 2
        assert token / 1024 == int(kib)
        assert token * 256 * 264 / 2**30 == pytest.approx(float(gib), abs=0.06)


def test_links_inside_the_documentation_lead_somewhere() -> None:
    for path in pages():
        text = path.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#\s]+)", text):
            if "://" not in target and not target.startswith("mailto:"):
                assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_golden_file_that_pages_show_exists() -> None:
    assert golden_for("cpu") is not None
