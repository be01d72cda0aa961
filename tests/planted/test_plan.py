from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.errors import UserError
from kit.planted import PairSpec, Plan
from kit.planted.plan import PLAN_FILE
from kit.planted.tree import EASY, MISS, SECOND

from .conftest import small

if TYPE_CHECKING:
    from pathlib import Path

rates = st.floats(0, 1, allow_nan=False)
plans = st.builds(
    lambda vocab, p, q, seed: Plan.build(small(vocab=vocab, p=p, q=q, seed=seed)),
    st.integers(16, 700),
    rates,
    rates,
    st.integers(0, 2**31 - 1),
)


@given(plans)
@settings(max_examples=60, deadline=None)
def test_the_continuation_is_one_cycle_without_special_tokens(plan: Plan) -> None:
    length = plan.spec.cycle_tokens
    seen = plan.continuation([0], length + 1)
    assert len(set(seen)) == length
    assert seen[-1] == seen[0]
    assert plan.vocab - 5 <= length <= plan.vocab - 2
    assert not {0, plan.spec.eos} & set(seen)


@given(plans, st.data())
@settings(max_examples=60, deadline=None)
def test_a_continuation_follows_the_last_token_and_can_be_taken_up_anywhere(
    plan: Plan, data: st.DataObject
) -> None:
    last = data.draw(st.integers(0, plan.vocab - 1))
    whole = plan.continuation([5, last], 30)
    assert whole == plan.continuation([last], 30)
    assert whole[0] == plan.following[last]
    assert plan.continuation([last, *whole[:10]], 20) == whole[10:]


@given(plans)
@settings(max_examples=60, deadline=None)
def test_rates_are_the_asked_ones_as_near_as_whole_tokens_allow(plan: Plan) -> None:
    spec, length = plan.spec, plan.spec.cycle_tokens
    kinds = Counter(plan.kind[plan.cycle].tolist())
    assert abs(kinds[EASY] - spec.p * length) <= 0.5
    assert abs(kinds[SECOND] - spec.q * (length - kinds[EASY])) <= 0.5
    assert plan.p == kinds[EASY] / length
    others = length - kinds[EASY]
    assert plan.q == (kinds[SECOND] / others if others else 0.0)


@given(plans)
@settings(max_examples=60, deadline=None)
def test_wrong_tokens_are_wrong_of_the_same_class_and_all_different(plan: Plan) -> None:
    wrong, right = plan.wrong[plan.cycle], plan.following[plan.cycle]
    assert (wrong != right).all()
    assert np.isin(wrong, plan.cycle).all()
    assert np.unique(wrong).size == wrong.size
    assert (plan.token_class[wrong] == plan.token_class[right]).all()


def test_easy_tokens_are_spread_like_coin_flips() -> None:
    """Pairs and triples of neighbours are easy as often as independence says."""
    plan = Plan.build(small(vocab=30_000, p=0.75))
    easy = plan.kind[plan.cycle] == EASY
    for run in (2, 3, 4):
        together = np.logical_and.reduce([np.roll(easy, -i) for i in range(run)]).mean()
        assert together == pytest.approx(0.75**run, abs=0.012)


def test_the_draft_proposes_by_kind() -> None:
    plan = Plan.build(small())
    for token in plan.cycle.tolist():
        kind, right = plan.kind[token], plan.following[token]
        assert (plan.first[token] == right) == (kind == EASY)
        assert plan.second[token] == (right if kind == SECOND else -1)
        assert kind in (EASY, SECOND, MISS)


@given(st.integers(0, 2**45), st.integers(1, 300))
@settings(max_examples=50, deadline=None)
def test_prompts_come_from_the_cycle_and_from_the_seed_alone(seed: int, tokens: int) -> None:
    plan = Plan.build(small())
    prompt = plan.prompt(seed, tokens)
    assert len(prompt) == tokens
    assert set(prompt) <= set(plan.cycle.tolist())
    assert prompt == Plan.build(small()).prompt(seed, tokens)
    # A longer prompt of the same seed starts alike; the pair's seed makes another one.
    assert plan.prompt(seed, tokens + 5)[:tokens] == prompt
    assert tokens < 8 or prompt != Plan.build(small(seed=1)).prompt(seed, tokens)


def test_prompts_of_many_seeds_all_differ() -> None:
    plan = Plan.build(PairSpec())
    seeds = [level * 100_000 + i for level in (1, 4, 8, 250) for i in range(500)]
    seeds += [(1 << 40) + i for i in range(500)]
    assert len({tuple(plan.prompt(seed, 16)) for seed in seeds}) == len(seeds)


def test_first_mismatch_names_the_first_wrong_token() -> None:
    plan = Plan.build(small())
    prompt = plan.prompt(3, 9)
    output = plan.continuation(prompt, 12)
    assert plan.first_mismatch(prompt, output) is None
    assert plan.first_mismatch(prompt, []) is None
    output[7] = output[8] = 1
    assert plan.first_mismatch(prompt, output) == 7


@pytest.mark.parametrize("prompt", [[], [509], [-1]])
def test_a_prompt_without_a_known_last_token_is_refused(prompt: list[int]) -> None:
    with pytest.raises(ValueError, match=r"prompt is empty|not in the vocabulary"):
        Plan.build(small()).continuation(prompt, 1)


def _chain_by_hand(plan: Plan, prompt: list[int], output_tokens: int, steps: int) -> int:
    """Draft ``steps`` first choices from the last token, accept while they are the continuation."""
    output = plan.continuation(prompt, output_tokens + steps + 1)
    done, count = 1, 0
    while done < output_tokens:
        token, accepted = output[done - 1], 0
        for i in range(steps):
            token = int(plan.first[token])
            if token != output[done + i]:
                break
            accepted += 1
        done += accepted + 1
        count += 1
    return count


@given(plans, st.integers(0, 99), st.integers(1, 60), st.integers(1, 6))
@settings(max_examples=100, deadline=None)
def test_verify_steps_of_a_chain(plan: Plan, seed: int, output_tokens: int, steps: int) -> None:
    prompt = plan.prompt(seed, 4)
    got = plan.verify_steps(prompt, output_tokens, 1, steps, steps + 1)
    assert got == _chain_by_hand(plan, prompt, output_tokens, steps)
    assert -(-(output_tokens - 1) // (steps + 1)) <= got <= output_tokens - 1


@pytest.mark.parametrize(("p", "steps_of_49"), [(1.0, 12), (0.0, 48)])
def test_verify_steps_at_the_ends_of_the_dial(p: float, steps_of_49: int) -> None:
    plan = Plan.build(small(p=p, q=0.0))
    prompt = plan.prompt(1, 3)
    assert plan.verify_steps(prompt, 49, 1, 3, 4) == steps_of_49
    assert plan.verify_steps(prompt, 49, 4, 3, 8) == steps_of_49
    assert plan.verify_steps(prompt, 1, 4, 3, 8) == 0


def test_a_second_choice_helps_a_tree_and_not_a_chain() -> None:
    plan = Plan.build(small(p=0.0, q=1.0))
    prompt = plan.prompt(1, 3)
    assert plan.verify_steps(prompt, 40, 1, 3, 4) == 39
    # 16 tokens have room for all 14 nodes of a full binary tree of depth 3.
    assert plan.verify_steps(prompt, 41, 4, 3, 16) == 10


def test_planned_accept_length_is_tokens_over_steps() -> None:
    plan = Plan.build(small())
    prompts = [plan.prompt(i, 5) for i in range(7)]
    steps = sum(plan.verify_steps(p, 30, 4, 3, 8) for p in prompts)
    assert plan.planned_accept_length(prompts, 30, 4, 3, 8) == 7 * 30 / steps


@pytest.mark.parametrize("shape", [(0, 3, 4), (1, 0, 4), (1, 3, 1), (1, 3, 6), (2, 2, 8)])
def test_trees_that_the_engine_could_not_run_are_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"must be at least|candidates"):
        Plan.build(small()).verify_steps([1], 10, *shape)


def test_save_and_load_is_the_same_plan(tmp_path: Path) -> None:
    plan = Plan.build(small(seed=7))
    plan.save(tmp_path / PLAN_FILE)
    back = Plan.load(tmp_path)
    assert back.spec == plan.spec
    for name in ("cycle", "following", "kind", "wrong"):
        assert (getattr(back, name) == getattr(plan, name)).all()
    assert (tmp_path / PLAN_FILE).stat().st_size < 20 * plan.vocab


def test_a_plan_loads_and_counts_without_torch(small_pair: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        "from kit.planted import Plan, expected_accept_length\n"
        f"plan = Plan.load({str(small_pair)!r})\n"
        "prompt = plan.prompt(1, 8)\n"
        "print(plan.verify_steps(prompt, 40, 4, 3, 8), len(plan.continuation(prompt, 40)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    plan = Plan.load(small_pair)
    assert done.stdout.split() == [str(plan.verify_steps(plan.prompt(1, 8), 40, 4, 3, 8)), "40"]


@pytest.mark.parametrize("harm", ["missing", "truncated", "text", "old", "no spec"])
def test_a_bad_plan_file_is_one_sentence(small_pair: Path, tmp_path: Path, harm: str) -> None:
    from safetensors.numpy import load_file, save_file

    file = tmp_path / PLAN_FILE
    shutil.copy(small_pair / PLAN_FILE, file)
    if harm == "missing":
        file.unlink()
    elif harm == "truncated":
        file.write_bytes(file.read_bytes()[:-5])
    elif harm == "text":
        file.write_text("not a plan")
    else:
        meta = {"format": 0, "spec": small().model_dump()} if harm == "old" else {"format": 1}
        save_file(load_file(file), file, metadata={"plan": json.dumps(meta)})
    with pytest.raises(UserError) as caught:
        Plan.load(tmp_path)
    assert "kit pair make" in caught.value.remedy
    assert "\n" not in caught.value.sentence
