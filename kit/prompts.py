"""The prompts of a run: fixed, so that a level sends the same ones every time; never shared by warm-up and measurement.

Planted pairs take seeded token ids. Real pairs take the committed chat prompts through the target's own chat
template, tokenized before any clock runs.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from kit import paths
from kit.errors import UserError
from kit.yamlio import StrictModel, read_model

# Seeds of measured prompts are level * STRIDE + index; warm-up seeds start far above any of them.
STRIDE = 100_000
WARM_BASE = 1 << 40


class _PromptFile(StrictModel):
    tasks: list[str]
    topics: list[str]


class SeededPrompts(Protocol):
    """What a plan offers: prompts by seed (:class:`kit.planted.Plan`)."""

    def prompt(self, seed: int, tokens: int) -> list[int]:
        """Return ``tokens`` token ids that depend on ``seed`` alone."""
        ...


class PromptSource:
    """Gives the token ids of the prompts of each pass.

    Args:
        measured: Function from seed to token ids, for measured prompts.
        warm: The same for warm-up prompts; the two never share a prompt.
    """

    def __init__(
        self, measured: Callable[[int], list[int]], warm: Callable[[int], list[int]]
    ) -> None:
        self._measured = measured
        self._warm = warm
        self._warm_next = 0

    @classmethod
    def planted(cls, plan: SeededPrompts, tokens: int) -> PromptSource:
        """Prompts of ``tokens`` seeded token ids."""
        return cls(
            lambda seed: plan.prompt(seed, tokens), lambda n: plan.prompt(WARM_BASE + n, tokens)
        )

    @classmethod
    def chat(cls, texts: Sequence[list[int]]) -> PromptSource:
        """Templated and tokenized chat prompts: even ones are measured, odd ones warm up.

        Args:
            texts: Token ids of every committed prompt, in order.
        """
        measured, warm = texts[0::2], texts[1::2]
        # Neighbouring levels start at other places, so that they differ without changing from run to run.
        return cls(
            lambda seed: measured[(seed // STRIDE * 37 + seed % STRIDE) % len(measured)],
            lambda n: warm[n % len(warm)],
        )

    def measured(self, level: int, count: int) -> list[list[int]]:
        """Return the ``count`` prompts of a measured pass at ``level``: always the same ones."""
        return [self._measured(level * STRIDE + i) for i in range(count)]

    def warm(self, count: int) -> list[list[int]]:
        """Return ``count`` prompts for a warm-up pass: others at every call."""
        start = self._warm_next
        self._warm_next += count
        return [self._warm(start + i) for i in range(count)]


def chat_texts() -> list[str]:
    """Return the committed chat prompts in their fixed order: tasks change fastest."""
    data = read_model(_PromptFile, paths.scenarios_dir() / "prompts" / "chat.yaml", "prompt file")
    return [task.format(topic=topic) for topic in data.topics for task in data.tasks]


@contextlib.contextmanager
def _torch_leaves_nothing() -> Iterator[None]:
    """Give PyTorch, which transformers imports, a cache folder that goes away.

    It makes one as soon as it is imported, in the folder for temporary files, and never removes it.
    """
    name = "TORCHINDUCTOR_CACHE_DIR"
    if name in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="kit-torch-") as folder:
        os.environ[name] = folder
        try:
            yield
        finally:
            del os.environ[name]


def tokenize_chat(target: str, trust_remote_code: bool = False) -> list[list[int]]:
    """Return the committed prompts as token ids, through the chat template of the model in ``target``.

    Raises:
        UserError: transformers is missing, the tokenizer cannot be read, or it has no chat template.
    """
    with _torch_leaves_nothing():
        return _tokenize_chat(target, trust_remote_code)


def _tokenize_chat(target: str, trust_remote_code: bool) -> list[list[int]]:
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise UserError(
            "Real weights need the package transformers for their chat template.",
            "Run `make setup`, which installs it.",
        ) from None
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(
            target, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except (OSError, ValueError) as error:
        text = str(error).split("\n")[0]
        raise UserError(
            f"The tokenizer in {target} cannot be read: {text}.", "Is the model folder complete?"
        ) from None
    if not getattr(tokenizer, "chat_template", None):
        raise UserError(
            f"The tokenizer in {target} has no chat template.",
            "EAGLE drafts are trained on chat-formatted text: use the instruction-tuned model.",
        )
    return [
        list(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
            )
        )
        for text in chat_texts()
    ]
