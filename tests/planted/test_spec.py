from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kit.errors import UserError
from kit.planted import PairSpec, make_pair
from kit.planted.make import check_feasible

from .conftest import small

if TYPE_CHECKING:
    from pathlib import Path


def test_the_defaults_are_the_small_pair() -> None:
    spec = PairSpec()
    assert spec.weight_bytes() < 30_000_000
    check_feasible(spec)


def test_the_h200_pair_is_feasible() -> None:
    spec = PairSpec(
        hidden=4096, layers=32, intermediate=14336, heads=32, kv_heads=8, vocab=32000, p=0.75, q=0.6
    )
    check_feasible(spec)
    assert 14e9 < spec.weight_bytes() < 16e9


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"hidden": 258}, "hidden (258) is not a multiple of heads (4)"),
        ({"heads": 4, "kv_heads": 3}, "not a multiple of kv_heads (3)"),
        ({"hidden": 132, "heads": 4}, "odd"),
        ({"p": 1.5}, "p: "),
        ({"q": -0.1}, "q: "),
        ({"p": float("nan")}, "p: "),
        ({"layers": 1}, "layers: "),
        ({"vocab": 3}, "vocab: "),
        ({"dtype": "float16"}, "dtype: "),
        ({"colour": 1}, "colour: "),
    ],
)
def test_a_bad_size_is_one_sentence(fields: dict[str, object], words: str) -> None:
    with pytest.raises(UserError) as caught:
        PairSpec(**fields)
    assert words in caught.value.sentence
    assert "\n" not in caught.value.sentence
    assert caught.value.remedy


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        PairSpec().p = 0.5


@pytest.mark.parametrize(
    ("layers", "captured"),
    [
        (2, (1,)),
        (3, (1, 2)),
        (4, (1, 2, 3)),
        (5, (1, 2, 4)),
        (6, (1, 3, 5)),
        (7, (2, 3, 4)),
        (32, (2, 16, 29)),
    ],
)
def test_captured_layers_are_distinct_and_exist(layers: int, captured: tuple[int, ...]) -> None:
    spec = small(layers=layers)
    assert spec.captured_layers == captured
    assert len(set(captured)) == len(captured)
    assert all(1 <= layer < layers for layer in captured)
    assert spec.uses_default_capture == (layers >= 7)


def test_too_narrow_for_the_vocabulary_says_what_would_do(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        make_pair(small(hidden=64, vocab=5000), tmp_path / "pair")
    assert "hidden size of 64 is too narrow" in caught.value.sentence
    words = caught.value.remedy.split()
    wide = int(next(word for word in words if word.rstrip(",").isdigit()).rstrip(","))
    check_feasible(small(hidden=wide, vocab=5000))
    with pytest.raises(UserError):
        check_feasible(small(hidden=wide - 16, vocab=5000))


def test_heads_too_small_for_the_positions_are_refused() -> None:
    with pytest.raises(UserError, match="cannot tell 8192 positions apart"):
        check_feasible(small(hidden=128, heads=32, max_positions=8192))
