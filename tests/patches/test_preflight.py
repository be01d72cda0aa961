"""What a run records about the patches, and a missing one that stops it before a server starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit import patches
from kit.errors import UserError
from kit.patches.preflight import run_patches
from tests.patches.test_site import home, series, site

__all__ = ["home", "series", "site"]


def test_the_process_backend_is_judged_by_checksum(home: Path) -> None:
    assert [(p["id"], p["live"]) for p in run_patches("process", {}, home)] == [
        ("0001", False),
        ("0002", False),
    ]
    patches.apply(home)
    found = run_patches("process", {"a": ["0001", "0002"]}, home)
    assert [p["live"] for p in found] == [True, True]
    assert set(found[1]["files"]) == {"sglang/new.py", "sglang/b.py"}
    assert all(len(c) == 64 for c in found[1]["files"].values())


def test_a_needed_patch_that_is_not_live_is_named_with_its_scenario(home: Path) -> None:
    with pytest.raises(UserError, match=r"spec-x needs patch 0002,") as caught:
        run_patches("process", {"fine": [], "spec-x": ["0002"]}, home)
    assert caught.value.remedy == "Run `kit patches apply`."


def test_files_out_of_reach_are_not_judged(home: Path, tmp_path: Path) -> None:
    for backend in ("compose", "attach"):
        assert [p["live"] for p in run_patches(backend, {"a": ["0001"]}, home)] == [None, None]
    # No SGLang there: the proof of the server itself has the word.
    assert [p["live"] for p in run_patches("process", {"a": ["0001"]}, tmp_path)] == [None, None]


def test_a_checkout_without_a_series_records_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scenarios").mkdir()
    monkeypatch.setenv("KIT_HOME", str(tmp_path))
    assert run_patches("process", {}) == []
