"""Runs inside_engine.py where SGLang can be imported: in a child process with the CPU engine's environment."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kit.sglang_plugin import cpu_environment

HERE = Path(__file__).parent


@pytest.mark.engine
def test_the_patched_modules_do_what_their_headers_say() -> None:
    if importlib.util.find_spec("sglang") is None:
        pytest.fail("SGLang is not installed: run `make setup`", pytrace=False)
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider"]
    command += ["--rootdir", str(HERE), str(HERE / "inside_engine.py")]
    done = subprocess.run(
        command,
        env={**os.environ, **cpu_environment()},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
