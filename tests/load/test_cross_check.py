"""The cross-check against sglang.bench_serving: its verdict, and that it always ends with what it measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kit.load.nulldata import NullConfig
from kit.load.nullserver import null_server

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "benchmarks/client/cross_check.py"
sys.path.append(str(PROGRAM.parent))

from agreement import (  # noqa: E402  beside the program, not a package
    FIGURES,
    cache_note,
    compare,
    verdict_line,
)

# What bench_serving would tell of a level, from a program that answers at once.
TELLS = """
print("{{}}", flush=True)
for line in sys.stdin:
    row = dict(version="0", cpu_s=0.1, wall_s=1, tok_s=90, window_tok_s={tok_s}, ttft_s=0.1, itl_s=0.02)
    row |= dict(ttft_wire_s=0.05, before_s=0.04, behind_s=0.01, latency_s=0.5, failed={failed})
    print(json.dumps(row), flush=True)
"""


def rows(**figures: float) -> list[dict[str, float]]:
    """Return eight rounds around the given figures, with a noise of 0.1 % that is the same in each client."""
    base = {"window_tok_s": 100.0, "ttft_wire_s": 0.05, "itl_s": 0.01, "latency_s": 1.0} | figures
    return [{k: v * (1 + 0.001 * (i % 3)) for k, v in base.items()} for i in range(8)]


def verdict(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> str:
    return verdict_line([compare(f, ours, theirs) for f in FIGURES], theirs)


def test_equal_clients_agree() -> None:
    assert verdict(rows(), rows()).startswith("agree within 2 %".replace(" %", "%"))


def test_one_figure_off_is_enough_to_differ() -> None:
    told = verdict(rows(ttft_wire_s=0.06), rows())
    assert told.startswith("differ by more than 2%")
    assert "+20.00%" in told


def test_five_rounds_decide_nothing() -> None:
    assert verdict(rows()[:5], rows()[:5]).startswith("not decided by 5 rounds")


def test_rounds_are_paired() -> None:
    """A drift of the server by a factor that both clients see is no noise of their ratio."""
    drift = [1 + 0.2 * i for i in range(8)]
    ours = [{k: v * d for k, v in r.items()} for r, d in zip(rows(), drift, strict=True)]
    assert verdict(ours, ours).startswith("agree")


def test_a_figure_that_one_client_did_not_tell_is_not_agreed_on() -> None:
    theirs = [{k: v for k, v in r.items() if k != "ttft_wire_s"} for r in rows()]
    told = verdict(rows(), theirs)
    assert told.startswith("not decided")
    assert "not measured" in told


def test_what_bench_serving_adds_is_said() -> None:
    theirs = rows(before_s=0.02, behind_s=0.001)
    told = verdict(rows(), theirs)
    assert "20.02 ms pass before the request is written and 1.00 ms after" in told
    assert "2.0% of a request's time" in told


def test_a_warm_prefix_cache_is_said() -> None:
    assert cache_note(rows()) == ""
    assert cache_note(rows(cached_tokens=0)) == ""
    assert "In 1 of 9 rounds" in cache_note([*rows(), {"cached_tokens": 64}])
    assert "up to 64" in cache_note([*rows(), {"cached_tokens": 64}])


def run(tmp_path: Path, other: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the program against a null server, with a stand-in for bench_serving's process."""
    stand_in = tmp_path / "python"
    stand_in.write_text(f"#!{sys.executable}\nimport json, sys, time\n{other}\n")
    stand_in.chmod(0o755)
    with null_server(NullConfig(interval_ms=2, ttft_ms=2)) as server:
        return subprocess.run(
            [
                sys.executable, str(PROGRAM), "--url", server.url, "--python", str(stand_in), "--streams", "2",
                "--requests", "4", "--tokens", "8", "--out", str(tmp_path / "out.json"), *options,
            ],
            capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path,
        )  # fmt: skip


def test_rounds_table_verdict_and_file(tmp_path: Path) -> None:
    done = run(tmp_path, TELLS.format(tok_s=1, failed=0), "--rounds", "6")
    assert done.returncode == 1, done.stderr
    assert "verdict: differ by more than 2%" in done.stdout
    written = json.loads((tmp_path / "out.json").read_text())
    assert [len(levels) for levels in written["rounds"].values()] == [6, 6]
    assert written["verdict"] in done.stdout
    assert {c["figure"]["key"] for c in written["compared"]} == {f.key for f in FIGURES}


def test_too_few_rounds_are_written_as_json(tmp_path: Path) -> None:
    done = run(tmp_path, TELLS.format(tok_s=1, failed=0), "--rounds", "1")
    assert done.returncode == 4, done.stderr
    assert json.loads((tmp_path / "out.json").read_text())["compared"][0]["low"] is None


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ("sys.exit('no module named sglang')", "ended early.\nno module named sglang"),
        ("time.sleep(600)", "said nothing for"),
        ("print('{}', flush=True); time.sleep(600)", "said nothing for"),
        (TELLS.format(tok_s=1, failed=3), "3 requests of sglang-generate failed"),
    ],
)
def test_a_client_that_fails_ends_the_check_with_a_sentence(
    tmp_path: Path, other: str, told: str
) -> None:
    done = run(tmp_path, other, "--rounds", "6", "--seconds", "6")
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_client_that_hangs_later_leaves_the_rounds_before(tmp_path: Path) -> None:
    other = TELLS.format(tok_s=1, failed=0).replace("for line", "for n, line")
    other = other.replace(
        "in sys.stdin:", "in enumerate(sys.stdin):\n    if n == 3: time.sleep(600)"
    )
    done = run(tmp_path, other, "--rounds", "6", "--seconds", "15")
    assert done.returncode == 4, done.stderr
    assert "verdict: not decided by 2 rounds" in done.stdout
