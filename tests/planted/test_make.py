from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections import namedtuple
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from kit.errors import UserError
from kit.planted import PairSpec, Plan, files, make_pair
from kit.planted import make as make_module
from kit.planted.weights import Weights

from .conftest import small

if TYPE_CHECKING:
    from pathlib import Path


def _sums(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def _leftovers(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


# -- contents ----------------------------------------------------------------------------------


def test_the_same_spec_gives_the_same_bytes_and_another_seed_others(
    small_pair: Path, tmp_path: Path
) -> None:
    again = _sums(make_pair(small(), tmp_path / "again"))
    assert again == _sums(small_pair)
    other = _sums(make_pair(small(seed=1), tmp_path / "other"))
    same = {name for name in again if again[name] == other[name]}
    assert same == {
        f"{model}/{name}"
        for model in ("target", "draft")
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json")
    } | {"target/model.safetensors.index.json"}


def test_the_bytes_are_those_of_every_other_machine(small_pair: Path) -> None:
    """Recorded once; a change means that pairs made elsewhere or before are no longer the same."""
    found = {
        name: hashlib.sha256(
            b"".join(
                tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
                for _, tensor in sorted(load_file(small_pair / name).items())
            )
        ).hexdigest()[:16]
        for name in KNOWN
    }
    assert found == KNOWN


KNOWN: dict[str, str] = {
    "draft/model.safetensors": "c507a3be105fbe89",
    "target/model-00001-of-00004.safetensors": "a630afc09b4f62fc",
    "target/model-00002-of-00004.safetensors": "759c31faef143d89",
}


def test_the_target_has_every_weight_of_a_llama_once(small_pair: Path) -> None:
    index = json.loads((small_pair / "target/model.safetensors.index.json").read_text())
    found: dict[str, tuple[str, list[int]]] = {}
    for shard in sorted((small_pair / "target").glob("*.safetensors")):
        with safe_open(shard, framework="np") as handle:  # type: ignore[no-untyped-call]
            for name in handle.keys():  # noqa: SIM118
                assert name not in found
                found[name] = (shard.name, handle.get_slice(name).get_shape())
    assert {name: shard for name, (shard, _) in found.items()} == index["weight_map"]
    h, inter, kv, v = 128, 72, 64, 509
    layer = {
        "self_attn.q_proj": [h, h],
        "self_attn.k_proj": [kv, h],
        "self_attn.v_proj": [kv, h],
        "self_attn.o_proj": [h, h],
        "mlp.gate_proj": [inter, h],
        "mlp.up_proj": [inter, h],
        "mlp.down_proj": [h, inter],
        "input_layernorm": [h],
        "post_attention_layernorm": [h],
    }
    want = {"model.embed_tokens": [v, h], "lm_head": [v, h], "model.norm": [h]}
    want |= {f"model.layers.{i}.{name}": shape for i in range(3) for name, shape in layer.items()}
    assert {name: shape for name, (_, shape) in found.items()} == {
        f"{name}.weight": shape for name, shape in want.items()
    }


def test_the_draft_has_the_names_that_sglang_loads(small_pair: Path) -> None:
    """The parameters of models/llama_eagle3.py in SGLang 0.5.12.post1, by checkpoint name."""
    tensors = load_file(small_pair / "draft/model.safetensors")
    h, inter, v = 128, 72, 509
    assert {name: list(t.shape) for name, t in tensors.items()} == {
        "midlayer.self_attn.q_proj.weight": [h, 2 * h],
        "midlayer.self_attn.k_proj.weight": [h, 2 * h],
        "midlayer.self_attn.v_proj.weight": [h, 2 * h],
        "midlayer.self_attn.o_proj.weight": [h, h],
        "midlayer.mlp.gate_proj.weight": [inter, h],
        "midlayer.mlp.up_proj.weight": [inter, h],
        "midlayer.mlp.down_proj.weight": [h, inter],
        "midlayer.hidden_norm.weight": [h],
        "midlayer.input_layernorm.weight": [h],
        "midlayer.post_attention_layernorm.weight": [h],
        "norm.weight": [h],
        "fc.weight": [h, 2 * h],  # three layers: two states can be captured
        "lm_head.weight": [v, h],
        "d2t": [v],
        "t2d": [v],
    }
    assert not tensors["d2t"].any()
    assert tensors["t2d"].all()


@pytest.mark.parametrize("layers", [2, 3, 4, 6, 7, 9])
def test_fc_is_as_wide_as_what_sglang_captures(layers: int, tmp_path: Path) -> None:
    pair = make_pair(small(layers=layers), tmp_path / "pair")
    config = json.loads((pair / "draft/config.json").read_text())
    target = json.loads((pair / "target/config.json").read_text())
    depth = target["num_hidden_layers"]
    # What set_eagle3_layers_to_capture does: a state is captured before layer i if i is listed.
    ids = (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    listed = [i + 1 for i in ids] if ids else [2, depth // 2, depth - 3]
    captured = sum(i in listed for i in range(depth))
    assert captured == len(ids or [0, 0, 0])
    fc = load_file(pair / "draft/model.safetensors")["fc.weight"]
    assert list(fc.shape) == [128, 128 * captured]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_weights_have_the_asked_type(dtype: str, tmp_path: Path) -> None:
    pair = make_pair(small(dtype=dtype), tmp_path / "pair")
    for file in pair.rglob("*.safetensors"):
        if file.parent == pair:
            continue
        kinds = {str(t.dtype) for n, t in load_file(file).items() if n not in ("d2t", "t2d")}
        assert kinds == {f"torch.{dtype}"}
    assert json.loads((pair / "target/config.json").read_text())["torch_dtype"] == dtype


def test_planned_logits_are_solved_for_exactly(small_pair: Path) -> None:
    """Both tokens with a say about a row get their logit, in spite of their embeddings' overlap."""
    plan = Plan.load(small_pair)
    weights = Weights(plan, torch.device("cpu"))
    logits = (weights.embedding @ weights.draft_head().T).numpy()
    cycle = plan.cycle
    assert np.allclose(logits[cycle, plan.first[cycle]], 15.0, atol=1e-3)
    has = cycle[plan.second[cycle] >= 0]
    gap = np.array([0.875, 4.0, 1.9375])[plan.token_class[has]]
    assert np.allclose(logits[has, plan.second[has]], 15.0 - gap, atol=1e-3)
    missed = cycle[plan.kind[cycle] == 2]
    assert np.allclose(logits[missed, plan.following[missed]], -5.0, atol=1e-3)


def test_the_tokenizer_is_one_word_a_token(small_pair: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(small_pair / "target", local_files_only=True)
    ids = Plan.load(small_pair).prompt(1, 20)
    text = " ".join(f"t{i}" for i in ids)
    assert tokenizer(text)["input_ids"] == ids
    assert tokenizer.decode(ids) == text
    assert tokenizer("t5  nonsense t7")["input_ids"] == [5, 0, 7]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 508)
    chat = [{"role": "system", "content": "t5"}, {"role": "user", "content": "t8 t9"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False).split() == ["t5", "t8", "t9"]


# -- reuse -------------------------------------------------------------------------------------


@pytest.fixture
def no_making(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object) -> None:
        raise AssertionError("the pair was made again")

    monkeypatch.setattr(make_module, "_write", refuse)


@pytest.mark.usefixtures("no_making")
def test_an_intact_pair_is_reused(small_pair: Path) -> None:
    assert make_pair(small(), small_pair) == small_pair


@pytest.mark.parametrize("harm", ["truncated", "flipped", "missing", "manifest", "no manifest key"])
def test_a_damaged_pair_is_named_and_made_again(
    small_pair: Path, tmp_path: Path, harm: str
) -> None:
    pair = tmp_path / "pair"
    shutil.copytree(small_pair, pair)
    shard = pair / "target/model-00002-of-00004.safetensors"
    data = bytearray(shard.read_bytes())
    if harm == "truncated":
        shard.write_bytes(data[:-100])
    elif harm == "flipped":
        data[-7] ^= 1
        shard.write_bytes(data)
    elif harm == "missing":
        shard.unlink()
    elif harm == "manifest":
        (pair / "pair.json").write_text('{"format": 1, "spec": {')
    else:
        manifest = json.loads((pair / "pair.json").read_text())
        del manifest["files"]
        (pair / "pair.json").write_text(json.dumps(manifest))
    found = files.damage(pair)
    assert found is not None
    if harm in ("truncated", "flipped", "missing"):
        assert shard.name in found
    assert ("bytes, not" in found) == (harm == "truncated")
    make_pair(small(), pair)
    assert files.damage(pair) is None
    assert _sums(pair) == _sums(small_pair)
    assert _leftovers(tmp_path) == ["pair"]


def test_a_pair_of_another_spec_is_replaced(small_pair: Path, tmp_path: Path) -> None:
    pair = tmp_path / "pair"
    shutil.copytree(small_pair, pair)
    make_pair(small(p=0.25), pair)
    assert Plan.load(pair).spec.p == 0.25
    assert files.damage(pair) is None
    assert _leftovers(tmp_path) == ["pair"]


def test_a_pair_of_another_format_is_replaced(small_pair: Path, tmp_path: Path) -> None:
    pair = tmp_path / "pair"
    shutil.copytree(small_pair, pair)
    manifest = json.loads((pair / "pair.json").read_text())
    (pair / "pair.json").write_text(json.dumps({**manifest, "format": 0}))
    make_pair(small(), pair)
    assert json.loads((pair / "pair.json").read_text())["format"] == 1


@pytest.mark.parametrize("what", ["folder", "file"])
def test_something_else_in_its_place_is_left_alone(tmp_path: Path, what: str) -> None:
    place = tmp_path / "pair"
    if what == "folder":
        place.mkdir()
        (place / "thesis.txt").write_text("years of work")
    else:
        place.write_text("years of work")
    with pytest.raises(UserError, match="not a planted pair"):
        make_pair(small(), place)
    kept = place / "thesis.txt" if what == "folder" else place
    assert kept.read_text() == "years of work"


def test_an_empty_folder_and_missing_parents_are_filled(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "empty", tmp_path / "a/b/pair"):
        assert files.damage(make_pair(small(), place)) is None


# -- all or nothing ----------------------------------------------------------------------------


@pytest.mark.parametrize("existing", [False, True])
def test_an_interrupted_making_leaves_what_was_there(
    small_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: bool
) -> None:
    pair = tmp_path / "pair"
    if existing:
        shutil.copytree(small_pair, pair)

    def interrupted(self: Weights) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Weights, "draft", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_pair(small(seed=5), pair)
    assert _leftovers(tmp_path) == (["pair"] if existing else [])
    if existing:
        assert _sums(pair) == _sums(small_pair)


def test_a_killed_making_is_cleared_away_by_the_next(small_pair: Path, tmp_path: Path) -> None:
    code = textwrap.dedent(
        f"""
        import os, signal
        from pathlib import Path
        from kit.planted import PairSpec, make_pair
        def kill(line):
            if line.startswith("layer"):
                os.kill(os.getpid(), signal.SIGKILL)
        spec = PairSpec(**{small().model_dump()!r})
        make_pair(spec, Path({str(tmp_path / "pair")!r}), progress=kill)
        """
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert done.returncode == -9, done.stderr
    assert _leftovers(tmp_path) == [".pair.partial"]
    make_pair(small(), tmp_path / "pair")
    assert _leftovers(tmp_path) == ["pair"]
    assert _sums(tmp_path / "pair") == _sums(small_pair)


def test_two_at_once_make_it_once(small_pair: Path, tmp_path: Path) -> None:
    code = textwrap.dedent(
        f"""
        from pathlib import Path
        from kit.planted import PairSpec, make_pair
        spec = PairSpec(**{small().model_dump()!r})
        make_pair(spec, Path({str(tmp_path / "pair")!r}), progress=print)
        """
    )
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(bool(text) for text in said) == [False, True]
    assert _sums(tmp_path / "pair") == _sums(small_pair)


# -- errors ------------------------------------------------------------------------------------


def test_too_little_disk_is_noticed_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(10**9, 10**9, 1000))
    with pytest.raises(UserError, match="GB are free") as caught:
        make_pair(small(), tmp_path / "pair")
    assert "Free some space" in caught.value.remedy
    assert _leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "The disk of .* is full"),
        (
            SafetensorError("I/O error: No space left on device (os error 28)"),
            "The disk of .* is full",
        ),
        (OSError(errno.EROFS, os.strerror(errno.EROFS)), "Read-only file system"),
        (SafetensorError("I/O error: Permission denied (os error 13)"), "Permission denied"),
    ],
)
def test_a_write_that_fails_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    def fail(*_args: object) -> None:
        raise error

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    with pytest.raises(UserError, match=words):
        make_pair(small(), tmp_path / "pair")
    assert _leftovers(tmp_path) == []


def test_a_file_as_parent_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        make_pair(small(), tmp_path / "file/pair")


def test_without_torch_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match="needs PyTorch"):
        make_pair(small(), tmp_path / "pair")
    assert _leftovers(tmp_path) == []


@pytest.mark.parametrize("device", ["cuda:99", "abacus"])
def test_a_device_that_is_not_there_is_one_sentence(tmp_path: Path, device: str) -> None:
    with pytest.raises(UserError, match=device):
        make_pair(small(), tmp_path / "pair", device=device)
    assert _leftovers(tmp_path) == []


def test_no_more_shards_are_held_than_there_are_writers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory does not grow with depth: a slow disk holds up the computing."""
    import threading
    import time

    import safetensors.torch

    real, lock = safetensors.torch.save_file, threading.Lock()
    made, written, most = 0, 0, 0
    shards = Weights.target_shards

    def counted(self: Weights) -> object:
        nonlocal made, most
        for shard in shards(self):
            with lock:
                made += 1
                most = max(most, made - written)
            yield shard

    def slow(*args: object) -> None:
        nonlocal written
        time.sleep(0.01)
        real(*args)  # type: ignore[arg-type]
        with lock:
            written += 1

    monkeypatch.setattr(Weights, "target_shards", counted)
    monkeypatch.setattr("safetensors.torch.save_file", slow)
    make_pair(small(layers=16), tmp_path / "pair")
    assert made == 17
    assert most <= make_module._WRITERS + 1


def test_progress_tells_layers_and_size(tmp_path: Path) -> None:
    said: list[str] = []
    make_pair(small(layers=9), tmp_path / "pair", progress=said.append)
    assert "9 layers" in said[0]
    assert "layer 8 of 9 made" in said
    assert "layer 9 of 9 made" in said


def test_the_size_estimate_covers_the_files(small_pair: Path) -> None:
    total = sum(
        f.stat().st_size for f in small_pair.rglob("*.safetensors") if f.parent != small_pair
    )
    spec: PairSpec = small()
    assert 0 <= total - spec.weight_bytes() < 20_000
