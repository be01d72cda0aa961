from __future__ import annotations

from pathlib import Path

from kit.known_issues.live import LogFollower, Matcher


def test_a_line_that_comes_in_pieces_is_matched_once_whole() -> None:
    matcher = Matcher()
    assert matcher.feed(b"harmless\nCUDA out of m") == []
    assert [h.issue.id for h in matcher.feed(b"emory\n")] == ["gpu-out-of-memory"]
    assert matcher.feed(b"CUDA out of memory\n") == []


def test_a_growing_file_is_followed(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    follower = LogFollower(log)
    assert follower.new_hits() == []
    log.write_text("starting\n")
    assert follower.new_hits() == []
    with log.open("a") as out:
        out.write("OSError: [Errno 24] Too many open files\n")
    assert [h.issue.id for h in follower.new_hits()] == ["too-many-files"]
    assert follower.new_hits() == []
