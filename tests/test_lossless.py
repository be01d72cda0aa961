from __future__ import annotations

import pytest

from kit.errors import EngineError
from kit.lossless import Answer, Compared, Divergence, _answer, compare, conclude


def answers(*rows: list[int], gap: float = 1.0) -> list[Answer]:
    return [Answer(row, [gap] * len(row)) for row in rows]


def compared(prompts: int, *gaps: float) -> Compared:
    return Compared("x", prompts, tuple(Divergence(i, 0, g, g < 0.25) for i, g in enumerate(gaps)))


def test_equal_outputs_have_no_divergence() -> None:
    assert compare("x", answers([1, 2, 3]), answers([1, 2, 3])).divergences == ()


@pytest.mark.parametrize(("gap", "tie"), [(0.01, True), (0.24, True), (0.26, False), (5.0, False)])
def test_the_references_gap_at_the_first_difference_decides(gap: float, tie: bool) -> None:
    reference = [Answer([1, 2, 3, 4], [9.0, 9.0, gap, 9.0])]
    (found,) = compare("x", reference, [Answer([1, 2, 7, 8], [])]).divergences
    assert (found.at, found.gap, found.tie) == (2, gap, tie)


def test_an_output_that_stops_early_is_no_tie() -> None:
    (found,) = compare("x", answers([1, 2, 3], gap=0.0), answers([1, 2])).divergences
    assert (found.at, found.tie) == (2, False)


def test_a_reference_without_gaps_is_refused() -> None:
    with pytest.raises(ValueError, match="no gaps"):
        compare("x", [Answer([1], [])], [Answer([1], [])])
    with pytest.raises(ValueError, match="shorter"):
        compare("x", answers([1], [2]), answers([1]))


def test_ties_are_lossless_and_one_sure_difference_is_not() -> None:
    quiet = (compared(30), compared(30, 0.01))
    assert conclude(30, quiet, (compared(30, 0.1, 0.2), compared(30, 0.1))).status == "LOSSLESS"
    broken = conclude(30, quiet, (compared(30, 0.1, 2.0), compared(30)))
    assert broken.status == "NOT LOSSLESS"
    assert "gap 2.000" in broken.why


def test_crowded_it_takes_a_higher_rate_than_the_baselines_own() -> None:
    alone = compared(30)
    many = compared(30, *[1.0] * 15)
    few = compared(30, 1.0)
    assert conclude(30, (alone, few), (alone, many)).status == "NOT LOSSLESS"
    assert conclude(30, (alone, many), (alone, many)).status == "LOSSLESS"
    assert conclude(30, (alone, few), (alone, compared(30, *[0.1] * 15))).status == "LOSSLESS"
    lines = conclude(30, (alone, few), (alone, many)).lines()
    assert lines[-1].startswith("NOT LOSSLESS")
    assert "15 of 30 outputs differ (0 ties, 15 beyond a tie" in lines[3]


def test_gaps_are_read_from_the_two_best_tokens() -> None:
    top = [[[-0.5, 4, None], [-2.0, 9, None]], [[-0.1, 5, None], [-0.2, 1, None]]]
    answer = _answer({"output_ids": [4, 5], "meta_info": {"output_top_logprobs": top}}, True)
    assert answer.gaps == pytest.approx([1.5, 0.1])
    with pytest.raises(EngineError, match="two best tokens"):
        _answer({"output_ids": [4, 5], "meta_info": {}}, True)
    with pytest.raises(EngineError, match="output_ids"):
        _answer({}, False)
