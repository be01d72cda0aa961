"""The patched engine on the CPU: batches above the threshold decode plainly, and nothing else changes."""

from __future__ import annotations

import json
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from kit.scenarios import load_rig
from tests.engine.conftest import Engine, serving

THRESHOLD = 4
# Plain tokens that a burst of 30 must at least be seen to make.
FEWEST = 24
# A ring of about twenty tokens a request, so that it fills and is emptied while a test decodes plainly.
SMALL_RING = {"SGLANG_KIT_CATCHUP_MIB": "1"}


@pytest.fixture(scope="module")
def served(pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Prefix cache on and small passes of the draft, unlike the rig: what must hold there must hold here too."""
    log = tmp_path_factory.mktemp("threshold") / "log"
    rig = load_rig("cpu")
    args = {k: v for k, v in rig.server.args.items() if k != "disable-radix-cache"}
    args["chunked-prefill-size"] = 64
    rig = rig.model_copy(update={"server": rig.server.model_copy(update={"args": args})})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.engine.conftest.load_rig", lambda _: rig)
        with serving("spec-v2-threshold", pair, log, env=SMALL_RING) as engine:
            yield engine


def planned_steps(engine: Engine, prompts: list[list[int]], tokens: int) -> list[int]:
    assert engine.spec is not None
    return [engine.plan.verify_steps(p, tokens, *engine.spec) for p in prompts]


def taken_steps(replies: list[dict[str, Any]]) -> list[int]:
    return [r["meta_info"]["spec_verify_ct"] for r in replies]


def stream(engine: Engine, prompt: list[int], tokens: int) -> tuple[list[int], list[int]]:
    """Return the output and how many tokens each chunk brought."""
    body = {
        "input_ids": prompt,
        "stream": True,
        "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
    }
    request = urllib.request.Request(
        f"{engine.server.base_url}/generate",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    output: list[int] = []
    chunks = []
    with urllib.request.urlopen(request, timeout=120) as reply:
        for line in reply:
            if line.startswith(b"data: {"):
                data = json.loads(line[6:])
                count = data["meta_info"]["completion_tokens"]
                chunks.append(count - len(output))
                output = data["output_ids"]
                assert len(output) == count
    return output, chunks


def plain_stretch(accepted: Callable[[int], int], length: int, chunks: list[int]) -> int:
    """Return how many tokens were decoded plainly in one stretch, every other step being as planned.

    Steps that reach the client together make one chunk, so a chunk may be several steps. Fails when no single plain
    stretch explains the chunks: a step before or after it then accepted something else than it must.

    Args:
        accepted: Drafts that a verify step must accept, by the index of the last output token before it.
        length: Tokens of the output.
        chunks: Tokens of each chunk; the first is the prefill's.
    """
    # Position -> the plain tokens so far, for each way to explain the chunks up to here; phase 0 before, 1 in, 2 after.
    ways: set[tuple[int, int]] = {(0, 0)}
    at = chunks[0]
    for chunk in chunks[1:]:
        following = set()
        stack = [(0, phase, plain) for phase, plain in ways]
        while stack:
            done, phase, plain = stack.pop()
            if done == chunk:
                following.add((phase, plain))
                continue
            if phase in (0, 1) and done < chunk:
                stack.append((done + 1, 1, plain + 1))
            # A verify step starts at the last token that is there already.
            step = min(1 + accepted(at + done - 1), length - at - done)
            if done + step <= chunk:
                stack.append((done + step, 0 if phase == 0 else 2, plain))
        ways = following
        at += chunk
        assert ways, f"nothing explains the chunk of {chunk} that ends at token {at}"
    return min(plain for _, plain in ways)


class TestThreshold:
    def test_the_log_and_the_proof_name_the_patches(self, served: Engine) -> None:
        proof = served.proof()
        assert proof.problems == []
        assert proof.patches_live == ["0001", "0002", "0003", "0004"]
        assert proof.worker == "v2"
        assert any("batches of more than 4 requests" in line for line in proof.evidence)

    @pytest.mark.parametrize("level", [1, 3, THRESHOLD])
    def test_at_or_below_it_every_step_speculates(self, served: Engine, level: int) -> None:
        prompts = [served.plan.prompt(100 * level + i, 24) for i in range(2 * level)]
        replies = served.together(prompts, 64, level)
        assert served.wrong(prompts, replies, 64) == 0
        assert taken_steps(replies) == planned_steps(served, prompts, 64)

    def test_above_it_every_step_makes_one_token(self, served: Engine) -> None:
        prompts = [served.plan.prompt(1_000 + i, 24) for i in range(12)]
        replies = batch(served, prompts, 64)
        assert served.wrong(prompts, replies, 64) == 0
        # The first token comes from prefill.
        assert taken_steps(replies) == [63] * 12

    def test_requests_of_different_lengths_ramp_across_it_both_ways(self, served: Engine) -> None:
        prompts = [served.plan.prompt(2_000 + i, 8 + 3 * i) for i in range(12)]
        lengths = [10 + 20 * i for i in range(12)]
        replies = batch(served, prompts, lengths)
        for prompt, reply, length in zip(prompts, replies, lengths, strict=True):
            assert served.wrong([prompt], [reply], length) == 0
        steps, fewest = (
            taken_steps(replies),
            [planned_steps(served, [p], n)[0] for p, n in zip(prompts, lengths, strict=True)],
        )
        assert all(a <= b for a, b in zip(fewest, steps, strict=True))
        # The shortest ended while all were there; the longest were few in the end and speculated again.
        assert steps[0] == lengths[0] - 1
        assert all(s < n - 15 for s, n in zip(steps[-3:], lengths[-3:], strict=True))

    def test_acceptance_is_back_with_the_first_step_after_a_burst(self, served: Engine) -> None:
        assert served.spec is not None
        long = [served.plan.prompt(3_000 + i, 24) for i in range(3)]
        burst = [served.plan.prompt(3_100 + i, 8) for i in range(8)]
        with ThreadPoolExecutor(3) as pool:
            running = [pool.submit(stream, served, p, 400) for p in long]
            time.sleep(0.5)
            replies = batch(served, burst, 30)
            streams = [r.result() for r in running]
        assert served.wrong(burst, replies, 30) == 0
        assert taken_steps(replies) == [29] * 8
        by_token = served.plan.accepted(*served.spec)
        for prompt, (output, chunks) in zip(long, streams, strict=True):
            assert output == served.plan.continuation(prompt, 400)
            planned = [int(by_token[t]) for t in output]
            plain = plain_stretch(planned.__getitem__, 400, chunks)
            # As many steps as the burst took, and one that was launched before its end was known. The fewest that
            # explain it are counted, and a verify step that accepts nothing looks like a plain one.
            assert FEWEST <= plain <= 31

    def test_plainly_decoded_tokens_may_become_a_prefix(self, served: Engine) -> None:
        prompts = [served.plan.prompt(4_000 + i, 30) for i in range(8)]
        replies = batch(served, prompts, 60)
        again = [[*p, *r["output_ids"]] for p, r in zip(prompts, replies, strict=True)]
        for prompt in again[:3]:
            reply = served.generate(prompt, 40)
            # What the draft had not seen when the request ended is not in the cache.
            assert 30 <= reply["meta_info"]["cached_tokens"] < 30 + 60 - 1
            assert served.wrong([prompt], [reply], 40) == 0
            assert taken_steps([reply]) == planned_steps(served, [prompt], 40)

    def test_log_probabilities_come_with_every_token(self, served: Engine) -> None:
        prompts = [served.plan.prompt(5_000 + i, 12) for i in range(6)]
        replies = batch(served, prompts, 20, return_logprob=True)
        for reply in replies:
            given = reply["meta_info"]["output_token_logprobs"]
            assert [token for _, token, *_ in given] == reply["output_ids"]
            assert all(p <= 0 for p, *_ in given)


# How far the draft's attention is spread over earlier positions: enough that what it guesses depends on them.
LEAK = 0.05


@pytest.fixture(scope="module")
def leaky_pair(pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pair in float32, its draft attending to all positions, so that its guesses depend on its KV cache.

    The planted draft attends to the current position only: it would not notice a hole in its cache.
    """
    out = tmp_path_factory.mktemp("leaky") / "pair"
    shutil.copytree(pair, out)
    for model in ("target", "draft"):
        for path in (out / model).glob("*.safetensors"):
            tensors = load_file(path)
            for name, tensor in tensors.items():
                wide = tensor.float() if tensor.is_floating_point() else tensor
                leaks = model == "draft" and name.endswith("self_attn.k_proj.weight")
                tensors[name] = (wide * LEAK if leaks else wide).contiguous()
            save_file(tensors, path, metadata={"format": "pt"})
        config = out / model / "config.json"
        config.write_text(config.read_text().replace('"bfloat16"', '"float32"'))
    return out


def test_the_drafts_cache_has_no_hole_after_plain_decoding(
    leaky_pair: Path, tmp_path: Path
) -> None:
    with serving("spec-v2-threshold", leaky_pair, tmp_path / "log", env=SMALL_RING) as engine:
        tokens, prompt = 160, engine.plan.prompt(6_000, 24)
        output = engine.plan.continuation(prompt, tokens + 1)

        def first_step(i: int) -> int:
            # The draft sees all of it in one prefill here: the reference. Two tokens take one verify step.
            reply = engine.generate([*prompt, *output[:i]], 2)
            assert reply["output_ids"] == output[i : i + 2]
            histogram = reply["meta_info"]["spec_correct_drafts_histogram"]
            assert sum(histogram) == 1
            return int(histogram.index(1))

        with ThreadPoolExecutor(THRESHOLD) as pool:
            accepted = list(pool.map(first_step, range(tokens)))
        by_token = engine.plan.accepted(*engine.spec or (1, 3, 4))
        # The leak must matter, or the test would show nothing; and something must be accepted.
        assert sum(accepted) < 0.9 * sum(int(by_token[t]) for t in output[:tokens])
        assert sum(accepted) > 0.3 * tokens
        burst = [engine.plan.prompt(6_100 + i, 8) for i in range(8)]
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(stream, engine, prompt, tokens)
            time.sleep(0.15)
            batch(engine, burst, 30)
            got, chunks = running.result()
        assert got == output[:tokens]
        assert FEWEST <= plain_stretch(accepted.__getitem__, tokens, chunks) <= 31


def test_a_failing_graph_capture_leaves_a_worker_that_decodes(
    pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "no_graphs"))
    # The other way to set the threshold, too.
    env = {"KIT_TEST_NO_GRAPHS": "1", "SGLANG_SPEC_DISABLE_BATCH_THRESHOLD": str(THRESHOLD)}
    with serving("spec-v2", pair, tmp_path / "log", env=env) as engine:
        assert "capturing the plain decode graphs failed" in engine.log()
        prompts = [engine.plan.prompt(7_000 + i, 20) for i in range(8)]
        replies = batch(engine, prompts, 40)
        assert engine.wrong(prompts, replies, 40) == 0
        assert taken_steps(replies) == [39] * 8
        replies = engine.together(prompts[:3], 40, 3)
        assert engine.wrong(prompts[:3], replies, 40) == 0
        assert taken_steps(replies) == planned_steps(engine, prompts[:3], 40)


def test_the_mended_v1_worker_decodes_as_planned(pair: Path, tmp_path: Path) -> None:
    with serving("spec-v1-fixed", pair, tmp_path / "log") as engine:
        assert engine.proof().problems == []
        prompts = [engine.plan.prompt(8_000 + i, 24) for i in range(16)]
        replies = engine.together(prompts, 64, 8)
        assert engine.wrong(prompts, replies, 64) == 0
        assert taken_steps(replies) == planned_steps(engine, prompts, 64)


def batch(
    engine: Engine, prompts: list[list[int]], tokens: int | list[int], **body: Any
) -> list[dict[str, Any]]:
    """Send all prompts in one request, so that they start together."""
    lengths = tokens if isinstance(tokens, list) else [tokens] * len(prompts)
    params = [{"temperature": 0, "max_new_tokens": n, "ignore_eos": True} for n in lengths]
    request = urllib.request.Request(
        f"{engine.server.base_url}/generate",
        json.dumps({"input_ids": prompts, "sampling_params": params, **body}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as reply:
        replies: list[dict[str, Any]] = json.load(reply)
    return replies
