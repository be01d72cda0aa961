"""Does speculation leave greedy output unchanged on real weights? Baseline against itself first, then speculation.

Two right runs of one model may differ: batches of other shapes sum in another order, and where the two best tokens
lie closer than that, either may come out. So the first place where two outputs part is judged by the reference's own
gap between its two best tokens: a small gap is a tie, a large one a bug. After that place nothing is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from scipy import stats as scipy_stats

from kit.backends.base import http_json
from kit.errors import EngineError

# Logits of 16 to 32 have steps of 0.125 in bfloat16; two of them, each off by one step, differ by this.
TIE = 0.25
ALPHA = 0.01
Status = Literal["LOSSLESS", "NOT LOSSLESS"]


@dataclass(frozen=True)
class Answer:
    """One greedy output.

    Attributes:
        ids: Output token ids.
        gaps: Difference of log-probability between the best two tokens at each position; empty if not asked for.
    """

    ids: list[int]
    gaps: list[float]


@dataclass(frozen=True)
class Divergence:
    """Where one output first differs from the reference.

    Attributes:
        prompt: Index of the prompt.
        at: Output position.
        gap: The reference's gap between its best two tokens there.
        tie: Whether the gap is small enough for either token to be right.
    """

    prompt: int
    at: int
    gap: float
    tie: bool


@dataclass(frozen=True)
class Compared:
    """Outputs of one pass against the reference's."""

    name: str
    prompts: int
    divergences: tuple[Divergence, ...]

    @property
    def bugs(self) -> list[Divergence]:
        """Divergences that no tie explains."""
        return [d for d in self.divergences if not d.tie]

    def text(self) -> str:
        """Return one line with the figures."""
        n = len(self.divergences)
        line = f"{self.name}: {n} of {self.prompts} outputs differ"
        if n:
            line += f" ({n - len(self.bugs)} ties, {len(self.bugs)} beyond a tie"
            worst = max(self.divergences, key=lambda d: d.gap)
            line += f"; largest gap {worst.gap:.3f} at token {worst.at} of prompt {worst.prompt})"
        return line


@dataclass(frozen=True)
class Report:
    """The answer. ``floor`` is the baseline against itself, ``found`` speculation against the baseline.

    Each holds a pass at C=1 and one at ``crowd`` requests at once. ``p_value`` is Fisher's exact test, one-sided,
    that speculation differs more often than the baseline itself when crowded.
    """

    status: Status
    why: str
    crowd: int
    floor: tuple[Compared, Compared]
    found: tuple[Compared, Compared]
    p_value: float

    def lines(self) -> list[str]:
        """Return the report as text; the last line is the answer."""
        return [
            *(c.text() for c in (*self.floor, *self.found)),
            f"chance of so many more differences at C={self.crowd}, were the rates equal: {self.p_value:.3f}",
            f"{self.status}  {self.why}",
        ]


def compare(
    name: str, reference: Sequence[Answer], others: Sequence[Answer], tie: float = TIE
) -> Compared:
    """Return where ``others`` first differ from ``reference``.

    Raises:
        ValueError: other numbers of answers, or a reference without gaps.
    """
    found = []
    for i, (mine, theirs) in enumerate(zip(reference, others, strict=True)):
        if len(mine.gaps) != len(mine.ids):
            raise ValueError("the reference has no gaps")
        pairs = zip(mine.ids, theirs.ids, strict=False)
        at = next((j for j, (a, b) in enumerate(pairs) if a != b), None)
        if at is None and len(mine.ids) != len(theirs.ids):
            # Not a matter of ties: one stopped early.
            found.append(Divergence(i, min(len(mine.ids), len(theirs.ids)), float("inf"), False))
        elif at is not None:
            found.append(Divergence(i, at, mine.gaps[at], mine.gaps[at] < tie))
    return Compared(name, len(reference), tuple(found))


def conclude(
    crowd: int, floor: tuple[Compared, Compared], found: tuple[Compared, Compared]
) -> Report:
    """Return the answer. At C=1 one divergence beyond a tie is a bug; crowded, it takes a higher rate as well."""
    alone, crowded = found
    table = [
        [len(crowded.divergences), crowded.prompts - len(crowded.divergences)],
        [len(floor[1].divergences), floor[1].prompts - len(floor[1].divergences)],
    ]
    p_value = float(scipy_stats.fisher_exact(table, alternative="greater").pvalue)
    status: Status = "LOSSLESS"
    why = f"every difference of {alone.prompts} outputs at C=1 is a tie"
    if not alone.divergences:
        why = f"all {alone.prompts} outputs at C=1 are the baseline's"
    if alone.bugs:
        status = "NOT LOSSLESS"
        worst = max(alone.bugs, key=lambda d: d.gap)
        why = (
            f"{len(alone.bugs)} outputs at C=1 leave the baseline's where it was sure (gap {worst.gap:.3f} "
            f"at token {worst.at} of prompt {worst.prompt}): a bug in the engine, its kernels or a patch"
        )
    elif p_value < ALPHA and crowded.bugs:
        status = "NOT LOSSLESS"
        why = (
            f"at C={crowd} {len(crowded.divergences)} outputs differ, against {len(floor[1].divergences)} of the "
            f"baseline itself, {len(crowded.bugs)} of them beyond a tie"
        )
    return Report(status, why, crowd, floor, found, p_value)


def _answer(reply: Any, wanted: bool) -> Answer:
    """Read an answer of SGLang's ``/generate`` (``output_top_logprobs``: per token a list of (logprob, id, text))."""
    ids = reply.get("output_ids") if isinstance(reply, dict) else None
    if not isinstance(ids, list):
        raise EngineError("The server's answer has no output_ids.")
    if not wanted:
        return Answer(ids, [])
    tops = reply.get("meta_info", {}).get("output_top_logprobs")
    if not isinstance(tops, list) or len(tops) != len(ids) or any(len(t) < 2 for t in tops):
        raise EngineError("The server's answer has no two best tokens for each output token.")
    return Answer(ids, [float(t[0][0]) - float(t[1][0]) for t in tops])


def generate(
    base_url: str,
    prompts: Sequence[list[int]],
    tokens: int,
    at_once: int = 1,
    *,
    gaps: bool = False,
    timeout_s: float = 300,
) -> list[Answer]:
    """Return the greedy outputs of a server, ``at_once`` requests in flight, with the gaps if asked for.

    Raises:
        EngineError: the server does not answer, or not as it must.
    """

    def one(prompt: list[int]) -> Answer:
        body: dict[str, Any] = {
            "input_ids": prompt,
            "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
        }
        if gaps:
            body |= {"return_logprob": True, "top_logprobs_num": 2}
        try:
            return _answer(http_json(f"{base_url}/generate", body, timeout_s), gaps)
        except (OSError, ValueError) as error:
            raise EngineError(
                f"The server does not answer a request: {error}.", "Look at the server's log."
            ) from None

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(one, prompts))


@dataclass(frozen=True)
class Baseline:
    """The reference outputs with their gaps, and the baseline against itself."""

    reference: list[Answer]
    floor: tuple[Compared, Compared]


def measure_baseline(
    base_url: str, prompts: Sequence[list[int]], tokens: int, crowd: int, tie: float = TIE
) -> Baseline:
    """Ask the baseline three times: for the reference, again at C=1, and ``crowd`` at once."""
    reference = generate(base_url, prompts, tokens, gaps=True)
    again = generate(base_url, prompts, tokens)
    crowded = generate(base_url, prompts, tokens, crowd)
    return Baseline(
        reference,
        (
            compare("baseline again, C=1", reference, again, tie),
            compare(f"baseline again, C={crowd}", reference, crowded, tie),
        ),
    )


def measure_speculation(
    base_url: str,
    name: str,
    baseline: Baseline,
    prompts: Sequence[list[int]],
    tokens: int,
    crowd: int,
    tie: float = TIE,
) -> Report:
    """Ask a speculating server at C=1 and ``crowd`` at once, and conclude."""
    alone = generate(base_url, prompts, tokens)
    crowded = generate(base_url, prompts, tokens, crowd)
    found = (
        compare(f"{name}, C=1", baseline.reference, alone, tie),
        compare(f"{name}, C={crowd}", baseline.reference, crowded, tie),
    )
    return conclude(crowd, baseline.floor, found)
