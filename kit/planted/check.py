"""Run both models of a pair, without any engine, and compare every step with the plan."""

from __future__ import annotations

import importlib
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kit.errors import UserError
from kit.planted import files, tree
from kit.planted.plan import Plan
from kit.planted.weights import require_torch

if TYPE_CHECKING:
    import torch

    from kit.planted.reference import DraftOutput, ReferenceDraft

_CHAIN_STEPS = 4
_BRANCHES = 192
_GENERATED = 24


@dataclass
class Count:
    """How many of the steps looked at were as planned.

    Attributes:
        steps: Steps looked at.
        right: Steps as planned.
        least_margin: Smallest logit distance between the planned choice and the best other token.
    """

    steps: int = 0
    right: int = 0
    least_margin: float | None = None

    def add(self, right: np.ndarray[Any, Any], margin: np.ndarray[Any, Any]) -> None:
        """Count a batch of steps."""
        self.steps += right.size
        self.right += int(right.sum())
        if margin.size:
            least = float(margin.min())
            self.least_margin = (
                least if self.least_margin is None else min(least, self.least_margin)
            )

    @property
    def ok(self) -> bool:
        """Whether every step was as planned."""
        return self.right == self.steps


@dataclass
class PairCheck:
    """What a check found.

    Attributes:
        path: The pair.
        damage: What is wrong with the files; None if they are intact.
        positions: Length of the longest sequence run.
        target: The target's next token at every position of all sequences.
        generated: Tokens that the target generated one by one, with a KV cache.
        first: The draft's first choice, at every position.
        second: Its second choice, where one is planned.
        chain_first: First choices in draft steps 2 and on, from its own hidden states.
        chain_second: Second choices there.
        least_self_weight: Smallest attention weight that a draft position gave itself.
        seconds: Time the check took.
    """

    path: str
    damage: str | None = None
    positions: int = 0
    target: Count = field(default_factory=Count)
    generated: Count = field(default_factory=Count)
    first: Count = field(default_factory=Count)
    second: Count = field(default_factory=Count)
    chain_first: Count = field(default_factory=Count)
    chain_second: Count = field(default_factory=Count)
    least_self_weight: float = 1.0
    seconds: float = 0.0

    @property
    def counts(self) -> dict[str, Count]:
        """All counts by name."""
        names = ("target", "generated", "first", "second", "chain_first", "chain_second")
        return {name: getattr(self, name) for name in names}

    @property
    def ok(self) -> bool:
        """Whether the files are intact, something was run, and all of it was as planned."""
        return (
            self.damage is None
            and self.target.steps > 0
            and self.first.steps > 0
            and all(count.ok for count in self.counts.values())
        )

    def lines(self) -> list[str]:
        """The report as lines of text."""
        if self.damage is not None:
            return [f"{self.path}: damaged: {self.damage}. Make it again with `kit pair make`."]
        names = {
            "target": "target, next token at every position",
            "generated": "target, generated one by one",
            "first": "draft, first choice at every position",
            "second": "draft, planned second choice",
            "chain_first": "draft steps 2 to 5, first choice",
            "chain_second": "draft steps 2 to 5, second choice",
        }
        rows = [f"{self.path}: files intact, sequences of up to {self.positions} positions"]
        for key, count in self.counts.items():
            margin = "" if count.least_margin is None else f", closest {count.least_margin:.2f}"
            rows.append(f"  {names[key]:<38} {count.right:>6} of {count.steps} as planned{margin}")
        rows.append(f"  draft, least attention to itself: {self.least_self_weight:.6f}")
        rows.append("every step as planned" if self.ok else "NOT as planned")
        return rows

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return {**asdict(self), "ok": self.ok}


def check_pair(
    path: Path | str,
    *,
    device: str = "cpu",
    positions: int | None = None,
    prompts: int = 4,
) -> PairCheck:
    """Run the target through transformers and the draft through its plain reading, against the
    plan.

    Sequences are a random prompt and the planned continuation. Each is run once, whole: in a
    causal model the next token at every position is then what greedy decoding gives. The first
    prompt's first tokens are also generated one by one.

    Args:
        path: The pair's folder.
        device: torch device to run on.
        positions: Length of the first, longest sequence; by default 4,352 (or what the pair
            allows), less for large models on a CPU.
        prompts: How many sequences; the others are an eighth as long.

    Returns:
        The report; damaged files are reported there, and nothing is run then.

    Raises:
        UserError: There is no pair, or torch or transformers are missing.
    """
    start = time.perf_counter()
    folder = Path(path)
    plan = Plan.load(folder)
    report = PairCheck(str(folder), damage=files.damage(folder))
    if report.damage is not None:
        return report
    torch = require_torch()
    spec = plan.spec
    if positions is None:
        positions = 4352
        if device == "cpu":  # about 2 minutes for a 7B-class pair
            positions = min(positions, max(64, int(2e12 / spec.weight_bytes())))
    report.positions = min(positions, spec.max_positions)
    with torch.inference_mode():
        model = _load_target(folder / "target", device)
        draft = _load_draft(folder / "draft", model)
        for number in range(prompts):
            length = report.positions if number == 0 else max(32, report.positions // 8)
            prompt = plan.prompt(1000 + number, min(96, length // 2))
            tokens = prompt + plan.continuation(prompt, length - len(prompt))
            _check_sequence(report, plan, model, draft, tokens, len(prompt))
            if number == 0:
                _check_generated(report, plan, model, prompt)
    report.seconds = time.perf_counter() - start
    return report


def _load_target(folder: Path, device: str) -> Any:
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as err:
        raise UserError(
            "Checking a planted pair needs the transformers package, which is not installed here.",
            "Run `make setup` and use that environment, or install transformers.",
        ) from err
    quiet = transformers.utils.logging
    bar = quiet.is_progress_bar_enabled()
    quiet.disable_progress_bar()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype="auto", attn_implementation="sdpa", local_files_only=True
        )
        return model.to(device).eval()
    except (RuntimeError, AssertionError) as err:
        raise UserError(
            f"The target cannot be run on {device!r} ({str(err).splitlines()[0]}).",
            "Use `cpu`, or a GPU with room for the model.",
        ) from err
    finally:
        if bar:
            quiet.enable_progress_bar()


def _load_draft(folder: Path, model: Any) -> ReferenceDraft:
    from kit.planted.reference import ReferenceDraft

    return ReferenceDraft(folder, model.get_input_embeddings().weight)


def _check_sequence(
    report: PairCheck,
    plan: Plan,
    model: Any,
    draft: ReferenceDraft,
    tokens: list[int],
    prompt_tokens: int,
) -> None:
    torch = require_torch()
    ids = torch.tensor([tokens], device=model.device)
    result = model.model(ids, output_hidden_states=True, use_cache=False)
    head = model.lm_head.weight
    following = plan.following
    for block in range(0, len(tokens), 1024):
        logits = (result.last_hidden_state[0, block : block + 1024] @ head.T).float()
        _compare(report.target, logits, following[tokens[block : block + 1024]])

    # The draft sees at each position the target's hidden state there and the token after it.
    captured = [result.hidden_states[layer][0] for layer in plan.spec.captured_layers]
    shifted = torch.tensor(
        [*tokens[1:], int(following[tokens[-1]])], device=model.device, dtype=torch.int64
    )
    positions = torch.arange(len(tokens), device=model.device)
    output, state = draft.extend(shifted, draft.fuse(captured), positions)
    _compare_draft(report, plan, output, shifted, report.first, report.second)

    # From many positions on, the draft runs by itself, along first and second choices at random.
    usable = np.arange(prompt_tokens, len(tokens))
    rng = np.random.default_rng(len(tokens))
    starts = np.unique(np.append(rng.choice(usable, min(_BRANCHES, usable.size)), usable[-1]))
    index = torch.as_tensor(starts, device=model.device)
    current, hidden, own = shifted[index].cpu().numpy(), output.hidden[index], None
    for _ in range(_CHAIN_STEPS):
        take_second = (plan.second[current] >= 0) & (rng.random(current.size) < 0.5)
        current = np.where(take_second, plan.second[current], plan.first[current])
        step = torch.as_tensor(current, device=model.device)
        output, own = draft.branch(state, index + 1, step, hidden, own)
        _compare_draft(report, plan, output, step, report.chain_first, report.chain_second)
        hidden = output.hidden


def _compare_draft(
    report: PairCheck,
    plan: Plan,
    output: DraftOutput,
    tokens: torch.Tensor,
    first: Count,
    second: Count,
) -> None:
    torch = require_torch()
    current = tokens.cpu().numpy()
    report.least_self_weight = min(report.least_self_weight, float(output.self_weight.min()))
    for block in range(0, current.size, 1024):
        here = current[block : block + 1024]
        logits = output.logits[block : block + 1024]
        _compare(first, logits, plan.first[here])
        rows = np.flatnonzero(plan.kind[here] == tree.SECOND)
        chosen = logits[torch.as_tensor(rows, device=logits.device)]
        if chosen.shape[0]:
            best = chosen.argmax(dim=1, keepdim=True)
            _compare(second, chosen.scatter(1, best, -1e9), plan.second[here[rows]])


def _compare(count: Count, logits: torch.Tensor, planned: np.ndarray[Any, Any]) -> None:
    """Count rows whose largest logit is the planned token's, and how far the next one is."""
    if not logits.shape[0]:
        return
    torch = require_torch()
    want = torch.as_tensor(planned, device=logits.device)[:, None]
    mine = logits.gather(1, want)
    others = logits.scatter(1, want, float("-inf")).amax(dim=1, keepdim=True)
    margin = (mine - others)[:, 0].cpu().numpy()
    count.add(margin > 0, margin)


def _check_generated(report: PairCheck, plan: Plan, model: Any, prompt: list[int]) -> None:
    torch = require_torch()
    room = min(_GENERATED, plan.spec.max_positions - len(prompt))
    ids = torch.tensor([prompt], device=model.device)
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        pad_token_id=0,
        max_new_tokens=room,
        min_new_tokens=room,
        do_sample=False,
    )
    got = np.array(out[0, len(prompt) :].tolist())
    want = np.array(plan.continuation(prompt, got.size))
    report.generated.add(got == want, np.empty(0))
