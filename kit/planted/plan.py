"""The plan of a pair: what the target says after any prompt and what the draft proposes. numpy
only."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kit.errors import UserError
from kit.planted import hashing, tree
from kit.planted.spec import FIRST_LOGIT, FORMAT, GAPS, PairSpec, worst_noise

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

PLAN_FILE = "plan.safetensors"


@dataclass(frozen=True, eq=False)
class Plan:
    """What every token leads to.

    Attributes:
        spec: What the pair was made from.
        cycle: The planned continuation, one cycle, int64 [cycle tokens]. BOS, EOS and up to two
            spare tokens are not part of it; they only lead into it.
        following: The target's next token after each token, int64 [vocab].
        kind: EASY, SECOND or MISS for each token, uint8 [vocab] (see :mod:`kit.planted.tree`).
        wrong: The wrong token that the draft puts first where the token is not easy, int64 [vocab].
    """

    spec: PairSpec
    cycle: NDArray[np.int64]
    following: NDArray[np.int64]
    kind: NDArray[np.uint8]
    wrong: NDArray[np.int64]
    _accepted: dict[tuple[int, int, int], NDArray[np.int64]] = field(
        default_factory=dict, repr=False
    )

    # -- making and storing ------------------------------------------------------------------

    @classmethod
    def build(cls, spec: PairSpec) -> Plan:
        """The plan of a spec; depends on ``vocab``, ``p``, ``q`` and ``seed`` only."""
        vocab, classes, length = spec.vocab, len(GAPS), spec.cycle_tokens
        usable = 1 + hashing.permutation(spec.seed, "cycle", vocab - 2)
        cycle = usable[:length]

        # Tokens off the cycle lead into it, so that a prompt may end in anything.
        following = cycle[hashing.hash64(spec.seed, "entry", vocab) % np.uint64(length)]
        following[cycle] = np.roll(cycle, -1)

        # Exactly the asked share, at random places: sampling without replacement, close to
        # independent.
        kind = np.full(vocab, tree.MISS, dtype=np.uint8)
        places = cycle[hashing.permutation(spec.seed, "kind", length)]
        easy = round(spec.p * length)
        second = round(spec.q * (length - easy))
        kind[places[:easy]] = tree.EASY
        kind[places[easy : easy + second]] = tree.SECOND

        # A wrong token has the class of the right one (see GAPS), is never the right one, and no
        # two tokens share it: place j on the cycle goes to place j + 1 of another block of three.
        blocks = length // classes
        ring = hashing.permutation(spec.seed, "wrong", blocks)
        other = np.empty(blocks, dtype=np.int64)
        other[ring] = np.roll(ring, -1)
        place = (np.arange(length) + 1) % length
        wrong = np.zeros(vocab, dtype=np.int64)
        wrong[cycle] = cycle[other[place // classes] * classes + place % classes]
        return cls(spec, cycle, following, kind, wrong)

    def save(self, file: Path) -> None:
        """Write the plan (a few bytes a token)."""
        from safetensors.numpy import save_file

        tensors: dict[str, NDArray[Any]] = {
            "cycle": self.cycle.astype(np.int32),
            "following": self.following.astype(np.int32),
            "kind": self.kind,
            "wrong": self.wrong.astype(np.int32),
        }
        # One entry: safetensors writes several in a random order, and the bytes must not vary.
        meta = {"format": FORMAT, "spec": self.spec.model_dump(mode="json")}
        save_file(tensors, file, metadata={"plan": json.dumps(meta)})

    @classmethod
    def load(cls, pair_dir: Path | str) -> Plan:
        """The plan of a pair's folder.

        Raises:
            UserError: There is no plan there, or it is damaged or of another version.
        """
        from safetensors import SafetensorError, safe_open

        file = Path(pair_dir) / PLAN_FILE
        remedy = "Make the pair again with `kit pair make`."
        if not file.is_file():
            raise UserError(
                f"There is no planted pair in {pair_dir}: {PLAN_FILE} is missing.", remedy
            )
        try:
            with safe_open(file, framework="np") as handle:  # type: ignore[no-untyped-call]
                meta = json.loads((handle.metadata() or {})["plan"])
                if meta.get("format") != FORMAT:
                    raise UserError(
                        f"The pair in {pair_dir} has format {meta.get('format')}, not {FORMAT}.",
                        remedy,
                    )
                spec = PairSpec.model_validate(meta["spec"])
                arrays = {
                    name: handle.get_tensor(name)
                    for name in ("cycle", "following", "kind", "wrong")
                }
        except (SafetensorError, KeyError, ValueError, OSError) as err:
            raise UserError(f"The plan in {file} cannot be read ({err}).", remedy) from err
        wide = {name: a.astype(np.int64) for name, a in arrays.items() if name != "kind"}
        return cls(spec, wide["cycle"], wide["following"], arrays["kind"], wide["wrong"])

    # -- the target --------------------------------------------------------------------------

    @property
    def vocab(self) -> int:
        """Size of the vocabulary."""
        return self.spec.vocab

    @property
    def p(self) -> float:
        """Realised share of cycle tokens after which the draft's first choice is right."""
        return float((self.kind[self.cycle] == tree.EASY).mean())

    @property
    def q(self) -> float:
        """Realised share of the other tokens after which its second choice is right (0 if none)."""
        others = self.kind[self.cycle]
        others = others[others != tree.EASY]
        return float((others == tree.SECOND).mean()) if others.size else 0.0

    def continuation(self, prompt_ids: Sequence[int], n: int) -> list[int]:
        """The target's first ``n`` greedy output tokens after a prompt.

        Raises:
            ValueError: The prompt is empty or ends in a token outside the vocabulary.
        """
        if n < 1:
            return []
        start = self._place[self._first_output(prompt_ids)]
        return [int(t) for t in self.cycle[(start + np.arange(n)) % self.cycle.size]]

    def first_mismatch(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> int | None:
        """Index of the first output token that is not the planned one, None if all are."""
        planned = self.continuation(prompt_ids, len(output_ids))
        pairs = enumerate(zip(output_ids, planned, strict=True))
        return next((i for i, (got, want) in pairs if got != want), None)

    def prompt(self, seed: int, tokens: int) -> list[int]:
        """A seeded random prompt of tokens of the cycle: never BOS, EOS or a special token."""
        draws = hashing.hash64(seed, f"prompt/{self.spec.seed}", tokens)
        return [int(t) for t in self.cycle[draws % np.uint64(self.cycle.size)]]

    def _first_output(self, prompt_ids: Sequence[int]) -> int:
        if not len(prompt_ids):
            raise ValueError("the prompt is empty")
        last = int(prompt_ids[-1])
        if not 0 <= last < self.vocab:
            raise ValueError(f"token {last} is not in the vocabulary of {self.vocab}")
        return int(self.following[last])

    @property
    def _place(self) -> NDArray[np.int64]:
        place = np.full(self.vocab, -1, dtype=np.int64)
        place[self.cycle] = np.arange(self.cycle.size)
        return place

    # -- the draft ---------------------------------------------------------------------------

    @property
    def token_class(self) -> NDArray[np.int64]:
        """Class of each token: its place on the cycle modulo 3 (0 off the cycle)."""
        return np.maximum(self._place, 0) % len(GAPS)

    @property
    def first(self) -> NDArray[np.int64]:
        """The draft's first choice after each token, int64 [vocab]."""
        return np.where(self.kind == tree.EASY, self.following, self.wrong)

    @property
    def second(self) -> NDArray[np.int64]:
        """The draft's planted second choice after each token, or -1, int64 [vocab]."""
        return np.where(self.kind == tree.SECOND, self.following, -1)

    def accepted(self, topk: int, steps: int, draft_tokens: int) -> NDArray[np.int64]:
        """Draft tokens accepted in a verify step that starts at each token, int64 [vocab].

        Raises:
            ValueError: SGLang could not run this tree.
        """
        shape = (topk, steps, draft_tokens)
        if shape not in self._accepted:
            self._accepted[shape] = self._tree(*shape)[0]
        return self._accepted[shape]

    def tree_margin(self, topk: int, steps: int, draft_tokens: int) -> float:
        """How decisive the closest tree decision on the cycle is, in log score.

        Below about 0.1 (it can get there with more than three steps) rounding in the engine may
        decide and :meth:`verify_steps` is no longer exact.
        """
        return float(self._tree(topk, steps, draft_tokens)[1][self.cycle].min())

    def _tree(
        self, topk: int, steps: int, draft_tokens: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        return tree.accepted_drafts(
            self.first,
            self.second,
            self.following,
            self.token_class,
            topk,
            steps,
            draft_tokens,
            FIRST_LOGIT - worst_noise(self.spec.hidden, self.spec.vocab),
        )

    def verify_steps(
        self,
        prompt_ids: Sequence[int],
        output_tokens: int,
        topk: int,
        steps: int,
        draft_tokens: int,
    ) -> int:
        """Verify steps that a request must take, SGLang's ``meta_info.spec_verify_ct``.

        The first token comes from prefill. A request that ends inside a step counts that step
        once, in both
        workers: v2's overlapped step after the end is not counted.

        Args:
            prompt_ids: The prompt.
            output_tokens: ``max_new_tokens``, with ``ignore_eos``.
            topk: ``speculative_eagle_topk``.
            steps: ``speculative_num_steps``.
            draft_tokens: ``speculative_num_draft_tokens``.
        """
        accepted = self.accepted(topk, steps, draft_tokens)[self.cycle]
        place = int(self._place[self._first_output(prompt_ids)])
        produced, count = 1, 0
        while produced < output_tokens:
            advance = 1 + int(accepted[place])
            produced += advance
            place = (place + advance) % self.cycle.size
            count += 1
        return count

    def planned_accept_length(
        self,
        prompts: Iterable[Sequence[int]],
        output_tokens: int,
        topk: int,
        steps: int,
        draft_tokens: int,
    ) -> float:
        """Output tokens per verify step over all prompts, as ``spec_accept_length`` counts them.

        Unlike :func:`expected_accept_length` this is exact for these prompts: it holds the luck of
        the draw, the prefill token and the truncated last step.
        """
        tokens = verifies = 0
        for prompt in prompts:
            tokens += output_tokens
            verifies += self.verify_steps(prompt, output_tokens, topk, steps, draft_tokens)
        return tokens / verifies if verifies else float("nan")

    def cycle_accept_length(self, topk: int, steps: int, draft_tokens: int) -> float:
        """Tokens per verify step of one request that runs around the whole cycle."""
        accepted = self.accepted(topk, steps, draft_tokens)[self.cycle]
        place = produced = count = 0
        while produced < self.cycle.size:
            advance = 1 + int(accepted[place % self.cycle.size])
            place += advance
            produced += advance
            count += 1
        return produced / count
