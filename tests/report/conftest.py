"""A real CPU run, trimmed (two sweeps, two requests a pass, no warm-up), and Chromium where there is one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.golden import Golden, read_golden
from kit.records import RunData
from kit.runfolder import read_run
from kit.verdict import Verdict, judge

HERE = Path(__file__).parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder of one's own."""
    target = tmp_path / "runs" / "20261201T143629Z-cpu"
    shutil.copytree(HERE / "run", target)
    return target


@pytest.fixture(scope="session")
def golden() -> Golden:
    return read_golden(HERE / "golden.yaml")


@pytest.fixture(scope="session")
def run() -> RunData:
    return read_run(HERE / "run")


@pytest.fixture(scope="session")
def verdict(run: RunData, golden: Golden) -> Verdict:
    return judge(run, golden)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window; playwright only drives it, it downloads nothing."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium on this host: scripts/ci-chromium.sh installs it")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=program)
        yield chromium
        chromium.close()
