"""The tool on a made-up site-packages with a made-up series, and on the real series."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kit import patches
from kit.cli.patches import patches_group
from kit.errors import UserError
from kit.patches.series import checksums, compute_checksums, sha256
from kit.patches.site import installed_version, write_all

FIRST = """Subject: Adds a line
What: Something.
Switch: --one; off

diff --git a/sglang/a.py b/sglang/a.py
--- a/sglang/a.py
+++ b/sglang/a.py
@@ -1,2 +1,3 @@
 one
+inserted
 two
--- /dev/null
+++ b/sglang/new.py
@@ -0,0 +1 @@
+LIVE = ["0001"]
"""
SECOND = """Subject: Changes both again
Switch: --two

--- a/sglang/new.py
+++ b/sglang/new.py
@@ -1 +1 @@
-LIVE = ["0001"]
+LIVE = ["0001", "0002"]
--- a/sglang/b.py
+++ b/sglang/b.py
@@ -1 +1 @@
-old
+new
"""


def make_site(folder: Path, version: str = "0.5.12.post1") -> Path:
    (folder / "sglang").mkdir(parents=True)
    (folder / f"sglang-{version}.dist-info").mkdir()
    (folder / "sglang" / "a.py").write_text("one\ntwo\n")
    (folder / "sglang" / "b.py").write_text("old\n")
    return folder


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return make_site(tmp_path / "site")


@pytest.fixture
def series(tmp_path: Path) -> Path:
    folder = tmp_path / "patches"
    folder.mkdir()
    (folder / "series").write_text("# a comment\n0001-a.patch\n\n0002-b.patch # last\n")
    (folder / "0001-a.patch").write_text(FIRST)
    (folder / "0002-b.patch").write_text(SECOND)
    pristine = make_site(tmp_path / "pristine")
    (folder / "checksums.json").write_text(json.dumps(compute_checksums(pristine, folder)))
    return folder


def content(site: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in sorted((site / "sglang").glob("*")) if p.is_file()}


PRISTINE = {"a.py": "one\ntwo\n", "b.py": "old\n"}
PATCHED = {"a.py": "one\ninserted\ntwo\n", "b.py": "new\n", "new.py": 'LIVE = ["0001", "0002"]\n'}


def live_ids(site: Path, series: Path) -> list[str]:
    return [s.id for s in patches.live(site, series) if s.live]


def test_apply_twice_verify_and_revert(site: Path, series: Path) -> None:
    assert live_ids(site, series) == []
    assert not patches.verify(site, series).ok
    done = patches.apply(site, folder=series)
    assert content(site) == PATCHED
    assert sorted(done.changed) == ["sglang/a.py", "sglang/b.py", "sglang/new.py"]
    assert patches.verify(site, series).ok
    assert live_ids(site, series) == ["0001", "0002"]
    times = {p: p.stat().st_mtime_ns for p in (site / "sglang").iterdir()}
    assert patches.apply(site, folder=series).changed == ()
    assert {p: p.stat().st_mtime_ns for p in (site / "sglang").iterdir()} == times
    patches.revert(site, folder=series)
    assert content(site) == PRISTINE
    assert patches.revert(site, folder=series).changed == ()


def test_a_dry_run_changes_nothing_and_says_what_would(site: Path, series: Path) -> None:
    outcome = patches.apply(site, folder=series, dry_run=True)
    assert len(outcome.changed) == 3
    assert outcome.lines()[0].startswith("would change 3 files")
    assert content(site) == PRISTINE


def test_half_a_series_is_completed(site: Path, series: Path) -> None:
    (site / "sglang" / "a.py").write_text(PATCHED["a.py"])
    (site / "sglang" / "new.py").write_text('LIVE = ["0001"]\n')
    assert live_ids(site, series) == ["0001"]
    assert not patches.verify(site, series).ok
    patches.apply(site, folder=series)
    assert content(site) == PATCHED


def test_half_a_series_is_reverted(site: Path, series: Path) -> None:
    (site / "sglang" / "a.py").write_text(PATCHED["a.py"])
    (site / "sglang" / "new.py").write_text('LIVE = ["0001"]\n')
    patches.revert(site, folder=series)
    assert content(site) == PRISTINE


@pytest.mark.parametrize("name", ["a.py", "b.py", "new.py"])
def test_a_file_in_an_unknown_state_stops_everything(site: Path, series: Path, name: str) -> None:
    (site / "sglang" / name).write_text("edited by hand\n")
    before = content(site)
    for act in (patches.apply, patches.revert):
        with pytest.raises(UserError, match=rf"sglang/{name} .*neither") as caught:
            act(site, folder=series)
        assert "Reinstall" in caught.value.remedy
    assert content(site) == before
    report = patches.verify(site, series)
    assert not report.ok
    assert any("CHANGED" in line and name in line for line in report.lines())


def test_a_missing_file_is_an_unknown_state(site: Path, series: Path) -> None:
    (site / "sglang" / "a.py").unlink()
    with pytest.raises(UserError, match=r"sglang/a\.py"):
        patches.apply(site, folder=series)


def test_another_version_of_sglang_is_refused(tmp_path: Path, series: Path) -> None:
    other = make_site(tmp_path / "other", "0.5.13")
    for act in (patches.apply, patches.revert):
        with pytest.raises(UserError, match=r"0\.5\.13"):
            act(other, folder=series)
    with pytest.raises(UserError, match=r"no sglang folder"):
        patches.verify(tmp_path, series)


def test_the_version_of_a_copy_without_metadata_is_read_from_its_source(tmp_path: Path) -> None:
    (tmp_path / "sglang").mkdir()
    assert installed_version(tmp_path) is None
    source = "version: str\n__version__: str\n\n__version__ = version = '0.5.12.post1'\n"
    (tmp_path / "sglang" / "_version.py").write_text(source)
    assert installed_version(tmp_path) == "0.5.12.post1"
    (tmp_path / "sglang" / "_version.py").write_text("nothing here\n")
    assert installed_version(tmp_path) is None


def test_a_series_that_gives_other_contents_than_recorded_changes_nothing(
    site: Path, series: Path
) -> None:
    (series / "0002-b.patch").write_text(SECOND.replace("+new\n", "+newer\n"))
    with pytest.raises(UserError, match="another checksum"):
        patches.apply(site, folder=series)
    assert content(site) == PRISTINE


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_failure_while_replacing_puts_the_old_files_back(site: Path, at: int) -> None:
    before = content(site)
    calls = 0

    def replace(a: Path, b: Path) -> None:
        nonlocal calls
        calls += 1
        if calls > at:
            raise OSError(28, "No space left on device")
        a.replace(b)

    new = {"sglang/a.py": b"x", "sglang/new.py": b"y", "sglang/b.py": b"z"}
    with pytest.raises(OSError, match="No space"):
        write_all(site, new, replace)
    assert content(site) == before


def test_a_hard_linked_file_leaves_its_twin_alone(site: Path, series: Path, tmp_path: Path) -> None:
    # uv links site-packages to its cache; writing through the link would spoil every environment.
    os.link(site / "sglang" / "a.py", tmp_path / "cached.py")
    patches.apply(site, folder=series)
    assert (tmp_path / "cached.py").read_text() == PRISTINE["a.py"]
    assert (site / "sglang" / "a.py").read_text() == PATCHED["a.py"]


def test_stale_bytecode_goes_and_the_mode_stays(site: Path, series: Path) -> None:
    cache = site / "sglang" / "__pycache__"
    cache.mkdir()
    for name in ("a.cpython-311.pyc", "other.cpython-311.pyc"):
        (cache / name).write_bytes(b"")
    (site / "sglang" / "a.py").chmod(0o640)
    patches.apply(site, folder=series)
    assert [p.name for p in cache.iterdir()] == ["other.cpython-311.pyc"]
    assert (site / "sglang" / "a.py").stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_site_is_named(site: Path, series: Path) -> None:
    (site / "sglang").chmod(0o555)
    with pytest.raises(UserError, match="cannot be written"):
        patches.apply(site, folder=series)
    (site / "sglang").chmod(0o755)


def test_a_missing_series_or_patch_is_named(tmp_path: Path, series: Path) -> None:
    with pytest.raises(UserError, match="No patch series"):
        patches.available(tmp_path)
    (series / "0001-a.patch").unlink()
    with pytest.raises(UserError, match=r"0001-a\.patch"):
        patches.available(series)
    (series / "checksums.json").write_text("{}")
    with pytest.raises(UserError, match="cannot be read"):
        checksums(series)
    (series / "checksums.json").write_text('{"sglang": "0.4", "files": {}}')
    with pytest.raises(UserError, match=r"for SGLang 0\.4"):
        checksums(series)


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(patches_group, list(args), catch_exceptions=False)
    return result.exit_code, result.output


@pytest.fixture
def home(site: Path, series: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose series is the made-up one; returns the site."""
    (series.parent / "scenarios").mkdir()
    monkeypatch.setenv("KIT_HOME", str(series.parent))
    return site


def test_the_commands(home: Path) -> None:
    at = ["--site", str(home)]
    assert run("verify", *at)[0] == 3
    assert run("apply", "--dry-run", *at)[0] == 0
    assert content(home) == PRISTINE
    code, out = run("list", *at)
    assert code == 0
    assert "not applied" in out
    assert "switch: --two" in out
    assert run("apply", *at)[0] == 0
    code, out = run("verify", *at)
    assert code == 0
    assert "kit patches live: 0001 0002" in out
    assert run("revert", *at)[0] == 0
    assert content(home) == PRISTINE


def test_the_commands_as_json(home: Path) -> None:
    at = ["--json", "--site", str(home)]
    assert json.loads(run("apply", *at)[1])["changed"]
    report: dict[str, Any] = json.loads(run("verify", *at)[1])
    assert report["ok"]
    assert [p["id"] for p in report["patches"] if p["live"]] == ["0001", "0002"]
    assert [p["switch"] for p in json.loads(run("list", *at)[1])] == ["--one; off", "--two"]


def test_every_patch_of_the_real_series_has_a_whole_header_and_recorded_checksums() -> None:
    series = patches.available()
    assert [p.id for p in series] == ["0001", "0002", "0003", "0004"]
    for patch in series:
        assert patch.title
        for field in ("What", "Why", "Switch", "Tested", "Not run", "Upstream", "Removal"):
            assert patch.header.get(field), f"{patch.name} has no {field}"
    states = {s.path: s for s in checksums()}
    assert set(states) == {d.path for p in series for d in p.files}
    for path, state in states.items():
        assert [i for i, _ in state.after] == [
            p.id for p in series if any(d.path == path for d in p.files)
        ]
    new = next(d for d in series[0].files if d.path.endswith("plain_decode.py"))
    assert "".join(new.hunks[0].new)
    assert states[new.path].pristine is None
    assert states[new.path].after[0][1] == sha256("".join(new.hunks[0].new).encode())
