"""The pair's own arithmetic, through transformers and a plain reading of the draft, keeps to the
plan."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file

from kit.errors import UserError
from kit.planted import PairSpec, Plan, check_pair, files, make_pair
from kit.planted.reference import ReferenceDraft

from .conftest import small

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Tensors = dict[str, torch.Tensor]
LONG = 4352  # beyond 4,096 positions


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(PairSpec(), id="cpu-rig"),
        pytest.param(
            PairSpec(layers=32, hidden=128, intermediate=64, vocab=509), id="32-layers-bf16"
        ),
        pytest.param(
            PairSpec(layers=32, hidden=128, intermediate=64, vocab=509, dtype="float32"),
            id="32-layers-fp32",
        ),
        pytest.param(
            PairSpec(layers=6, hidden=160, heads=5, kv_heads=1, vocab=1000), id="6-layers"
        ),
    ],
)
def test_every_step_is_as_planned_beyond_4096_positions(spec: PairSpec, tmp_path: Path) -> None:
    report = check_pair(make_pair(spec, tmp_path / "pair"), positions=LONG, prompts=2)
    assert report.ok, report.lines()
    assert report.positions == LONG
    assert report.target.steps > LONG
    assert report.chain_first.steps > 500
    assert report.least_self_weight > 0.9999
    margins = [count.least_margin for count in report.counts.values()]
    target, _, first, second, chain_first, chain_second = margins
    assert target is not None
    assert target > 8
    for margin in (first, second, chain_first, chain_second):
        assert margin is not None
        assert margin > 0.6


ODD = {
    "p-0-q-0": {"p": 0.0, "q": 0.0},
    "p-0-q-1": {"p": 0.0, "q": 1.0},
    "p-1": {"p": 1.0, "q": 0.5},
    "fp32": {"dtype": "float32"},
    "two-layers": {"layers": 2},
    "default-capture": {"layers": 7},
    "tiny": {"hidden": 96, "heads": 1, "kv_heads": 1, "intermediate": 1, "vocab": 16},
    "odd": {"hidden": 130, "heads": 5, "kv_heads": 1, "intermediate": 37, "vocab": 331},
    "no-gqa": {"kv_heads": 4},
    "seed": {"seed": 2**31 - 1},
}


@pytest.mark.parametrize("fields", ODD.values(), ids=ODD.keys())
def test_odd_pairs_keep_to_the_plan(fields: dict[str, object], tmp_path: Path) -> None:
    spec = small(max_positions=400, **fields)
    report = check_pair(make_pair(spec, tmp_path / "pair"))
    assert report.ok, report.lines()
    assert report.positions == 400
    assert (report.second.steps > 0) == (spec.p < 1 and spec.q > 0)


def _swap_rows(name: str) -> Callable[[Tensors, Plan], None]:
    def harm(tensors: Tensors, plan: Plan) -> None:
        rows = plan.continuation([0], 40)
        tensors[name][rows] = tensors[name][rows].roll(1, dims=0)

    return harm


def _unfocused(tensors: Tensors, _plan: Plan) -> None:
    tensors["midlayer.self_attn.q_proj.weight"].mul_(0.02)


def _unerased(tensors: Tensors, _plan: Plan) -> None:
    tensors["midlayer.self_attn.v_proj.weight"][:, 128:] = 0


@pytest.mark.parametrize(
    ("file", "harm", "wrong"),
    [
        ("target/model-00001-of-00004.safetensors", _swap_rows("lm_head.weight"), "target"),
        ("draft/model.safetensors", _swap_rows("lm_head.weight"), "first"),
        ("draft/model.safetensors", _unfocused, "first"),
        ("draft/model.safetensors", _unerased, "chain_first"),
    ],
    ids=["target-head", "draft-head", "attention-spread", "hidden-state-kept"],
)
def test_the_check_fails_when_weights_are_wrong(
    small_pair: Path,
    tmp_path: Path,
    file: str,
    harm: Callable[[Tensors, Plan], None],
    wrong: str,
) -> None:
    pair = tmp_path / "pair"
    shutil.copytree(small_pair, pair)
    tensors = load_file(pair / file)
    harm(tensors, Plan.load(pair))
    save_file(tensors, pair / file, {"format": "pt"})
    assert not check_pair(pair).ok
    # With a manifest that vouches for the bad weights, running them must tell.
    files.write_manifest(pair, small(), {})
    report = check_pair(pair)
    assert report.damage is None
    assert not report.ok
    assert not report.counts[wrong].ok
    assert "NOT as planned" in report.lines()[-1]


def test_a_plan_of_another_pair_is_noticed(small_pair: Path, tmp_path: Path) -> None:
    pair = tmp_path / "pair"
    shutil.copytree(small_pair, pair)
    Plan.build(small(seed=3)).save(pair / "plan.safetensors")
    files.write_manifest(pair, small(), {})
    assert not check_pair(pair).ok


def test_damage_is_reported_and_nothing_is_run(small_pair: Path, tmp_path: Path) -> None:
    pair = tmp_path / "pair"
    shutil.copytree(small_pair, pair)
    shard = pair / "draft/model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    report = check_pair(pair)
    assert not report.ok
    assert report.target.steps == 0
    assert "draft/model.safetensors" in report.lines()[0]
    assert json.loads(json.dumps(report.to_dict()))["ok"] is False


def test_no_pair_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no planted pair"):
        check_pair(tmp_path / "nothing")


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_a_missing_package_is_one_sentence(
    small_pair: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match="not installed"):
        check_pair(small_pair)


# -- the plain reading itself ------------------------------------------------------------------


@pytest.fixture
def random_draft(small_pair: Path, tmp_path: Path) -> ReferenceDraft:
    """A float32 draft with random weights and grouped heads: attention spreads everywhere."""
    torch.manual_seed(0)
    config = json.loads((small_pair / "draft/config.json").read_text())
    config["num_key_value_heads"] = 2
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = {
        name: torch.randn(64 if "k_proj" in name or "v_proj" in name else t.shape[0], *t.shape[1:])
        / (t.shape[-1] ** 0.5 if t.dim() > 1 else 1)
        for name, t in load_file(small_pair / "draft/model.safetensors").items()
        if t.is_floating_point()
    }
    save_file(tensors, tmp_path / "model.safetensors")
    return ReferenceDraft(tmp_path, torch.randn(509, 128))


def test_the_reading_agrees_with_transformers_attention(random_draft: ReferenceDraft) -> None:
    """Rotary, grouping and scale are Llama's: the same layer through transformers' functions."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, repeat_kv

    draft, count = random_draft, 600  # more than one block of queries
    tokens, hidden = torch.randint(0, 509, (count,)), torch.randn(count, 128)
    positions = torch.arange(count)
    output, _ = draft.extend(tokens, hidden, positions)

    w = draft.weights
    both = torch.cat(
        [
            torch.nn.functional.rms_norm(draft.embedding[tokens], (128,), eps=1e-6)
            * w["midlayer.input_layernorm.weight"],
            torch.nn.functional.rms_norm(hidden, (128,), eps=1e-6)
            * w["midlayer.hidden_norm.weight"],
        ],
        dim=-1,
    )
    q, k, v = (
        (both @ w[f"midlayer.self_attn.{x}_proj.weight"].T).view(1, count, -1, 32).transpose(1, 2)
        for x in "qkv"
    )
    angle = positions[:, None] * draft.inverse_frequency.repeat(2)
    q, k = apply_rotary_pos_emb(q, k, angle.cos()[None], angle.sin()[None])
    mixed = torch.nn.functional.scaled_dot_product_attention(
        q, repeat_kv(k, 2), repeat_kv(v, 2), is_causal=True
    )
    x = hidden + mixed.transpose(1, 2).reshape(count, 128) @ w["midlayer.self_attn.o_proj.weight"].T
    y = (
        torch.nn.functional.rms_norm(x, (128,), eps=1e-6)
        * w["midlayer.post_attention_layernorm.weight"]
    )
    y = torch.nn.functional.silu(y @ w["midlayer.mlp.gate_proj.weight"].T) * (
        y @ w["midlayer.mlp.up_proj.weight"].T
    )
    x = x + y @ w["midlayer.mlp.down_proj.weight"].T
    torch.testing.assert_close(output.hidden, x, rtol=1e-4, atol=1e-4)
    final = torch.nn.functional.rms_norm(x, (128,), eps=1e-6) * w["norm.weight"]
    torch.testing.assert_close(output.logits, final @ w["lm_head.weight"].T, rtol=1e-3, atol=1e-3)


def test_branches_see_their_prefix_and_themselves_only(random_draft: ReferenceDraft) -> None:
    """Drafting on from a position is the same as running that sequence whole."""
    draft = random_draft
    tokens, hidden = torch.randint(0, 509, (40,)), torch.randn(40, 128)
    _, state = draft.extend(tokens, hidden, torch.arange(40))
    prefix = torch.tensor([7, 40, 23])
    steps = torch.randint(0, 509, (3, 3))
    states = torch.randn(3, 3, 128)
    own = None
    for step in range(3):
        output, own = draft.branch(state, prefix, steps[step], states[step], own)
        for b, length in enumerate(prefix.tolist()):
            whole_tokens = torch.cat([tokens[:length], steps[: step + 1, b]])
            whole_hidden = torch.cat([hidden[:length], states[: step + 1, b]])
            whole, _ = draft.extend(whole_tokens, whole_hidden, torch.arange(length + step + 1))
            torch.testing.assert_close(output.hidden[b], whole.hidden[-1], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(
                output.self_weight[b], whole.self_weight[-1], rtol=1e-4, atol=1e-6
            )
