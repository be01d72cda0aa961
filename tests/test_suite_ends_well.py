"""The suite's own settings: warnings are errors, and still the interpreter must end with pytest's exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_importing_a_tokenizer_does_not_kill_the_interpreter_at_its_end(tmp_path: Path) -> None:
    """SWIG's types warn while sentencepiece is imported; as an error that ends in a segmentation fault."""
    (tmp_path / "test_one.py").write_text("def test_import():\n    import sentencepiece\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-c", str(ROOT / "pyproject.toml"), f"--rootdir={tmp_path}", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
