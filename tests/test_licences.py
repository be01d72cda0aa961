from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def licences() -> ModuleType:
    spec = importlib.util.spec_from_file_location("licences", ROOT / "scripts" / "licences.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_lists_every_pinned_package(licences: ModuleType) -> None:
    """Run ``python scripts/licences.py`` again where a lock changed."""
    text = licences.PAGE.read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (\S+) \| ([^|]+) \|", text, re.M))
    missing = {
        f"{name}=={version}"
        for lock in licences.LOCKS.values()
        for name, version in licences.pinned(ROOT / "locks" / lock).items()
        if version not in rows.get(name, "")
    }
    assert missing == set()


def test_what_is_not_permissive_is_told_apart(licences: ModuleType) -> None:
    known = dict.fromkeys(licences.pinned(ROOT / "locks" / "cpu-py311.txt"), ("1", "MIT"))
    known |= {"tqdm": ("1", "MPL-2.0"), "torch": ("1", ""), "orjson": ("1", "a | b")}
    text = licences.page(known)
    head = text.split("| package |")[0]
    assert "- tqdm: MPL-2.0" in head
    assert "- torch: not declared" in head
    assert "- click" not in head
    assert "a / b" in text
