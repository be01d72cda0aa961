"""A small pair made once for the whole folder, and the specs the tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kit.planted import PairSpec, make_pair

if TYPE_CHECKING:
    from pathlib import Path

SMALL: dict[str, object] = {
    "hidden": 128,
    "layers": 3,
    "intermediate": 72,
    "heads": 4,
    "kv_heads": 2,
    "vocab": 509,
    "p": 0.6,
    "q": 0.7,
    "max_positions": 1024,
}


def small(**changes: object) -> PairSpec:
    """A pair that takes hundredths of a second to make."""
    return PairSpec(**{**SMALL, **changes})


@pytest.fixture(scope="session")
def small_pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair that no test may change; copy it to do so."""
    return make_pair(small(), tmp_path_factory.mktemp("pairs") / "small")
