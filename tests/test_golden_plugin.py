"""``pytest golden --run RUN`` as a CI system sees it."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from kit.golden import write_golden
from kit.records import RunData
from kit.runfolder import RunFolder
from tests.conftest import ROOT
from tests.test_verdict import CLAIM, golden_of, run_of, with_gpu


def checked(tmp_path: Path, run: RunData) -> tuple[int, str, dict[str, ET.Element]]:
    """Return exit code, output, and the test cases of the JUnit file by name."""
    with RunFolder.create(tmp_path / "runs", "h200") as folder:
        folder.write_manifest(run.manifest)
        for row in run.levels:
            folder.append(row)
    write_golden(golden_of(claims=[CLAIM]), tmp_path / "golden.yaml")
    xml = tmp_path / "junit.xml"
    args: list[Any] = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", ROOT / "golden"]
    args += ["--run", folder.path, "--golden", tmp_path / "golden.yaml", f"--junitxml={xml}"]
    done = subprocess.run(args, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    cases = {case.attrib["name"]: case for case in ET.parse(xml).getroot().iter("testcase")}
    return done.returncode, done.stdout, cases


def test_reproduced_run_passes(tmp_path: Path) -> None:
    code, out, cases = checked(tmp_path, with_gpu(run_of()))
    assert code == 0, out
    assert {"test_level[spec-v2-C4]", "test_claim[c]", "test_run_is_valid"} <= cases.keys()


@pytest.mark.parametrize("step", [1.4])
def test_a_failure_tells_ratio_interval_tolerance_and_cause(tmp_path: Path, step: float) -> None:
    code, out, cases = checked(tmp_path, with_gpu(run_of(step=step)))
    assert code == 1, out
    (failure,) = cases["test_level[spec-v2-C4]"].iter("failure")
    text = failure.attrib["message"]
    assert "SLOWER" in text
    assert "of golden's 1200 (tolerance ±5" in text
    assert "0.71" in text
    assert "[" in text
    assert "cause: spec-v2 at C=4: step time is 1.4" in text
    assert "Traceback" not in text
    assert not list(cases["test_claim[c]"].iter("failure")), "the claim still holds"
