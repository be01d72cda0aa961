"""``kit serve``: the server's log on the screen as it comes, secrets masked, nothing left behind."""

from __future__ import annotations

import signal
from pathlib import Path

from kit.cli.follow import shown
from tests.faults.bench import Bench, until

CANARY = "hf_Canary0a1b2c3d4e5f"


def serve(bench: Bench, *more: str) -> list[str]:
    words = ["serve", "baseline", "--rig", "tiny", "--backend", "process"]
    return [*words, "--port", str(bench.port), *more]


def test_the_log_is_shown_while_it_serves_and_secrets_are_masked(bench: Bench) -> None:
    log = bench.runs / "serve-baseline.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("of an earlier server\n")
    kit = bench.start(*serve(bench), stub=f"--log-line said:{CANARY}", HF_TOKEN=CANARY)
    kit.says("said:***")
    assert until(lambda: "decodes at" in kit.err), kit.err
    kit.send(signal.SIGTERM)
    assert kit.wait() == 0
    assert CANARY not in kit.out + kit.err
    assert "of an earlier server" not in kit.out
    assert "Traceback" not in kit.out + kit.err


def test_what_a_dying_server_said_last_is_shown(bench: Bench) -> None:
    kit = bench.run(*serve(bench), stub="--mode exit-at-start --log-line why-it-ends")
    assert kit.wait() == 2
    assert "The server ended with exit code 1" in kit.err
    assert "why-it-ends" in kit.out
    assert "stub failure at start" in kit.out


def test_quiet_shows_no_log(bench: Bench) -> None:
    kit = bench.start(*serve(bench, "--quiet"), stub="--log-line not-to-be-seen")
    assert until(lambda: "decodes at" in kit.err), kit.err
    kit.send(signal.SIGTERM)
    assert kit.wait() == 0
    assert kit.out == ""
    assert "not-to-be-seen" in (bench.runs / "serve-baseline.log").read_text()


def test_a_line_comes_whole_and_the_last_one_without_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    seen: list[str] = []
    with shown(log, seen.append), log.open("wb", buffering=0) as file:
        file.write(b"one\r\nhalf ")
        assert until(lambda: seen == ["one"])
        file.write(b"a line\nand \xff no end")
        assert until(lambda: len(seen) == 2)
    assert seen == ["one", "half a line", "and � no end"]
