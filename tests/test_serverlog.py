from __future__ import annotations

from pathlib import Path

import pytest

from kit import serverlog
from kit.records import LevelRecord, ServerFigures
from kit.verdict.guards import all_findings
from kit.verdict.product import product_findings
from tests.factory import level_record, manifest, plan, run_data

LINE = (
    "[2026-12-01 12:06:30] Decode batch, #running-req: {n}, #token: 240, token usage: 0.01, {accept}"
    "cuda graph: False, gen throughput (token/s): {rate}, #queue-req: {queue}\n"
)


def line(n: int, rate: float, queue: int = 0, accept: float | None = 2.5) -> str:
    said = f"accept len: {accept:.2f}, accept rate: 0.57, " if accept else ""
    return LINE.format(n=n, rate=rate, queue=queue, accept=said)


def test_step_time_is_running_times_accepted_over_rate() -> None:
    text = "noise\n" + line(4, 1.0) + line(4, 1000.0) + line(4, 500.0) + line(2, 9.0, queue=1)
    found = serverlog.figures(text)
    assert found is not None
    assert (found.lines, found.running_max, found.queue_max) == (4, 4, 1)
    assert found.running_mean == pytest.approx(3.5)
    # The first line's time began in the pass before, the last runs fewer requests.
    assert found.step_time_s == pytest.approx((4 * 2.5 / 1000 + 4 * 2.5 / 500) / 2)


def test_without_speculation_a_step_is_one_token() -> None:
    found = serverlog.figures(line(8, 1.0, accept=None) + line(8, 400.0, accept=None))
    assert found is not None
    assert found.step_time_s == pytest.approx(8 / 400)


def test_a_log_that_says_nothing() -> None:
    assert serverlog.figures("Prefill batch, #new-seq: 1\n") is None
    one = serverlog.figures(line(1, 5.0))
    assert one is not None
    assert one.step_time_s is None


def test_only_what_was_added_is_read(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("before\n")
    offset = serverlog.size(log)
    with log.open("a") as file:
        file.write("after\n")
    assert serverlog.since(log, offset) == "after\n"
    assert (serverlog.size(None), serverlog.since(None, 0)) == (0, "")
    assert (serverlog.size(tmp_path / "none"), serverlog.since(tmp_path / "none", 0)) == (0, "")


def figures(**changes: float) -> ServerFigures:
    data = {"lines": 5, "running_mean": 4, "running_max": 4, "queue_max": 0, "step_time_s": 0.01}
    return ServerFigures.model_validate({**data, **changes})


def level4(server: ServerFigures, **changes: float) -> LevelRecord:
    return level_record(level=4, effective_concurrency=3.9, server=server, **changes)


def test_a_queue_beside_fewer_running_requests_is_a_cap() -> None:
    """The client has four in flight all the time: only the server's log shows it."""
    run = run_data([level4(figures(running_max=2, queue_max=2))])
    (finding,) = all_findings(run, None)
    assert (finding.id, finding.severity) == ("concurrency-capped", "invalid")
    assert "running requests are capped: the server decoded at most 2" in finding.seen


@pytest.mark.parametrize(
    "server", [figures(queue_max=3), figures(running_max=3), figures(running_max=4, queue_max=1)]
)
def test_a_short_queue_or_a_thin_pass_is_no_cap(server: ServerFigures) -> None:
    assert all_findings(run_data([level4(server)]), None) == []


def test_step_times_of_client_and_server_that_differ_are_a_note() -> None:
    config = manifest(plan=plan())

    def of(client_s: float) -> list[str]:
        rows = [
            level4(figures(step_time_s=0.010 + 0.00001 * i), sweep=i).model_copy(
                update={"step_time_s": client_s, "tok_s": 3.9 / client_s}
            )
            for i in range(4)
        ]
        return [f.id for f in product_findings(run_data(rows, manifest=config))]

    assert of(0.010) == []
    assert of(0.0115) == ["step-times-differ"]


def test_the_growth_of_a_log_is_read_once_and_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serverlog, "BLOCK", 3)
    log = tmp_path / "log"
    growth = serverlog.Growth(log)
    assert growth.read() == b"", "the file need not exist yet"
    log.write_bytes(b"abcde")
    assert [growth.read() for _ in range(3)] == [b"abc", b"de", b""]
    with log.open("ab") as file:
        file.write(b"f")
    assert growth.read() == b"f"
    assert serverlog.Growth(log, offset=4).read() == b"ef"
