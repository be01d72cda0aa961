"""Fuzz the reading of answers with atheris (libFuzzer), guided by coverage.

    pip install atheris
    python benchmarks/client/fuzz.py http --seconds 60
    python benchmarks/client/fuzz.py sse tests/load/corpus/sse -runs=1000000     # libFuzzer's own options

The targets are those of tests/load/fuzzing.py, which the tests run on the committed corpus and with hypothesis.
An input that breaks one is written to ``crash-…`` in the current folder: fix what it shows and add it to
tests/load/corpus.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Run until libFuzzer ends."""
    if len(sys.argv) < 2 or sys.argv[1] not in ("sse", "http"):
        raise SystemExit(__doc__)
    name, *options = sys.argv[1:]
    if "--seconds" in options:
        at = options.index("--seconds")
        options[at : at + 2] = [f"-max_total_time={int(options[at + 1])}"]
    sys.path.insert(0, str(ROOT))
    import atheris  # type: ignore[import-untyped,import-not-found,unused-ignore]

    with atheris.instrument_imports(include=["kit.load"]):
        from tests.load import fuzzing
    with tempfile.TemporaryDirectory() as found:
        if all(o.startswith("-") for o in options):
            # The first folder takes what is found, so the committed one stays as it is.
            options += [found, str(ROOT / "tests/load/corpus" / name)]
        atheris.Setup([sys.argv[0], *options], fuzzing.TARGETS[name])
        atheris.Fuzz()


if __name__ == "__main__":
    main()
