"""scripts/audit.py: the locks against a folder of advisories. All advisories here are made up."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from packaging.version import Version

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", ROOT / "scripts" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["audit"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def events(*steps: str) -> list[dict[str, str]]:
    """`i0 f2` is introduced 0, fixed 2; `l` is last_affected."""
    words = {"i": "introduced", "f": "fixed", "l": "last_affected"}
    return [{words[s[0]]: s[1:]} for s in steps]


@pytest.mark.parametrize(
    ("version", "steps", "affected"),
    [
        ("1.0", ["i0", "f2.0"], True),
        ("2.0", ["i0", "f2.0"], False),
        ("2.0rc1", ["i0", "f2.0"], True),
        ("2.0.post1", ["i0", "f2.0"], False),
        ("2.0", ["i0", "l2.0"], True),
        ("2.0.1", ["i0", "l2.0"], False),
        ("5", ["i0"], True),
        ("0.1.dev1", ["i0", "f1"], True),
        ("1.5", ["i0", "f1", "i2", "f3"], False),
        ("2.5", ["i0", "f1", "i2", "f3"], True),
        ("2.5", ["i2", "f3", "i0", "f1"], True),
        ("3", ["i0", "f1", "i2", "f3"], False),
        ("1.10", ["i1.9", "f1.11"], True),
        ("1!1.0", ["i0", "f2.0"], False),
        ("2", ["i0", "f2", "i2"], True),
        ("1", ["i0", "fnot-a-version"], None),
    ],
)
def test_ranges(audit: ModuleType, version: str, steps: list[str], affected: bool | None) -> None:
    assert audit.in_range(Version(version), events(*steps)) is affected


def entry(name: str = "some-thing", **more: Any) -> dict[str, Any]:
    return {"package": {"ecosystem": "PyPI", "name": name}, **more}


def ranged(*steps: str, kind: str = "ECOSYSTEM") -> list[dict[str, Any]]:
    return [{"type": kind, "events": events(*steps)}]


def test_a_local_build_counts_as_its_release(audit: ModuleType) -> None:
    assert audit.affects(entry(ranges=ranged("i0", "l2.13.0")), "2.13.0+cpu") is True
    assert audit.affects(entry(versions=["2.13.0"]), "2.13.0+cpu") is True


def test_listed_versions_count_without_a_range(audit: ModuleType) -> None:
    assert audit.affects(entry(versions=["1.0", "legacy?"]), "1.0.0") is True
    assert audit.affects(entry(versions=["1.0"]), "1.1") is False


def test_commits_alone_are_no_answer(audit: ModuleType) -> None:
    assert audit.affects(entry(ranges=ranged("i0", "fabc123", kind="GIT")), "1.0") is None
    assert (
        audit.affects(entry(versions=["0.9"], ranges=ranged("i0", "fabc", kind="GIT")), "1.0")
        is False
    )


def database(folder: Path, *found: dict[str, Any], osv_json: bool = False) -> Path:
    for one in found:
        name = one["affected"][0]["package"]["name"]
        path = folder / "advisories" if osv_json else folder / "vulns" / name
        path.mkdir(parents=True, exist_ok=True)
        text = json.dumps(one) if osv_json else yaml.safe_dump(one)
        (path / f"{one['id']}{'.json' if osv_json else '.yaml'}").write_text(text)
    return folder


def advisory(id_: str, *affected: dict[str, Any], **more: Any) -> dict[str, Any]:
    head = {"id": id_, "modified": "2026-02-03T00:00:00Z", "details": "It is bad. Very much so."}
    return {**head, "affected": list(affected), **more}


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "some.txt"
    path.write_text(
        "some_thing==1.10 \\\n    --hash=sha256:0\n    # via x\nother==2.0 ; x\nfine==1\n"
    )
    return path


@pytest.mark.parametrize("osv_json", [False, True])
def test_what_is_pinned_and_affected_is_said(
    audit: ModuleType,
    tmp_path: Path,
    lock: Path,
    osv_json: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = database(
        tmp_path / "db",
        advisory("PYSEC-1", entry("some.thing", ranges=ranged("i0", "f1.11")), aliases=["CVE-1"]),
        advisory("GHSA-1", entry("some.thing", ranges=ranged("i1", "f1.12")), aliases=["CVE-1"]),
        advisory("PYSEC-2", entry("some.thing", ranges=ranged("i0", "f1.9"))),
        advisory("PYSEC-3", entry("other", ranges=ranged("i0")), withdrawn="2026-01-01T00:00:00Z"),
        advisory("PYSEC-4", entry("other", ranges=ranged("i0", "fc0ffee", kind="GIT"))),
        advisory("PYSEC-5", entry("unpinned", ranges=ranged("i0"))),
        osv_json=osv_json,
    )
    assert audit.main([str(folder), "--lock", str(lock)]) == 1
    rows = [r for r in capsys.readouterr().out.splitlines() if r.startswith("| ")][1:]
    assert rows == [
        "| other | 2.0 | PYSEC-4 | no version named | LOOK: no versions to compare. It is bad. |",
        "| some-thing | 1.10 | CVE-1, GHSA-1, PYSEC-1 | 1.11, 1.12 | It is bad. |",
    ]
    assert (
        audit.main([str(folder), "--lock", str(lock), "--ignore", "CVE-1", "--ignore", "PYSEC-4"])
        == 0
    )
    said = capsys.readouterr().out
    assert "the newest of 2026-02-03" in said
    assert "Nothing found" in said


def test_a_folder_without_advisories_is_no_clean_bill(
    audit: ModuleType, tmp_path: Path, lock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "broken.yaml").write_text("a: [")
    for folder in (tmp_path / "empty", tmp_path / "none"):
        assert audit.main([str(folder), "--lock", str(lock)]) == 2
    assert audit.main([str(tmp_path), "--lock", str(tmp_path / "no.txt")]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_every_lock_is_read_by_default(audit: ModuleType) -> None:
    pins = audit.pinned(sorted((ROOT / "locks").glob("*.txt")))
    assert ("sglang", "0.5.12.post1") in pins
    assert any(v.endswith("+cpu") for n, v in pins if n == "torch")
    assert len(pins) > 150
