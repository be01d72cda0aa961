"""What a planted pair is made from, and the constants of its construction."""

from __future__ import annotations

import math
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kit.errors import UserError

FORMAT = 1
"""Version of the construction and of the files; a pair of another version is made anew."""

TARGET_LOGIT = 20.0
"""Target logit of the planned next token (all others are noise around 0)."""

FIRST_LOGIT = 15.0
"""Draft logit of its first choice. bfloat16 has steps of 1/16 there."""

GAPS = (0.875, 4.0, 1.9375)
"""How far the draft's second choice lies below its first, by the class of the token.

The class of a token is its place on the cycle modulo 3, so the three levels of a tree of depth 3
have three different gaps, and their sums over any two different sets of levels are far apart: no
two nodes that are not ancestor and descendant come closer than 0.69 in log score, whatever tokens
they hold (computed in the tests). With one gap of 1.3 for all, "first, then second" and "second,
then first" come as close as 0.24, of which rounding in bfloat16 can take half. The values are
multiples of 1/16, the spacing of bfloat16 between 8 and 16, so rounding does not move them.
"""

EXCLUDED_LOGIT = -5.0
"""Draft logit of the right token where it is planned to be neither first nor second."""

WRITE_GAIN = 0.01
"""What attention and MLP add to the residual stream, relative to the stream (root mean square)."""

ROPE_THETA = 10000.0
RMS_EPS = 1e-6
BOS = 0


class PairSpec(BaseModel):
    """Size, dial and seed of a planted pair. The defaults are the small pair of the CPU rig.

    Args:
        hidden: Width of the residual stream; a multiple of ``heads``.
        layers: Decoder layers of the target, at least 2.
        intermediate: Width of the MLPs.
        heads: Query heads.
        kv_heads: Key/value heads of the target; divides ``heads``. The draft has as many as
            ``heads``, because its values carry the whole stream.
        vocab: Vocabulary size, at least 16.
        p: Share of tokens for which the draft's first choice is right, 0 to 1.
        q: Share of the others for which its second choice is right, 0 to 1.
        seed: Everything random comes from it.
        dtype: Type of the weights.
        max_positions: Longest sequence (prompt and output).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    hidden: int = Field(default=256, ge=32)
    layers: int = Field(default=12, ge=2)
    intermediate: int = Field(default=1024, ge=1)
    heads: int = Field(default=4, ge=1)
    kv_heads: int = Field(default=2, ge=1)
    vocab: int = Field(default=2048, ge=16)
    p: float = Field(default=0.75, ge=0.0, le=1.0)
    q: float = Field(default=0.6, ge=0.0, le=1.0)
    seed: int = Field(default=0, ge=0, lt=2**31)
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    max_positions: int = Field(default=8192, ge=16)

    def __init__(self, **fields: Any) -> None:
        """Check the fields.

        Raises:
            UserError: One of them, or a combination, cannot work.
        """
        try:
            super().__init__(**fields)
        except ValidationError as err:
            first = err.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            what = str(first["msg"]).removeprefix("Value error, ")
            what = what[:1].lower() + what[1:]
            raise UserError(
                f"This planted pair cannot be made: {where + ': ' if where else ''}{what}.",
                "Change the pair's size in the rig file or on the command line.",
            ) from err

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        if self.hidden % self.heads:
            raise ValueError(f"hidden ({self.hidden}) is not a multiple of heads ({self.heads})")
        if self.heads % self.kv_heads:
            raise ValueError(
                f"heads ({self.heads}) is not a multiple of kv_heads ({self.kv_heads})"
            )
        if self.head_dim % 2:
            raise ValueError(
                f"the head size hidden/heads ({self.head_dim}) is odd; rotary needs pairs"
            )
        return self

    @property
    def head_dim(self) -> int:
        """Size of one attention head."""
        return self.hidden // self.heads

    @property
    def eos(self) -> int:
        """Id of the end token, the last of the vocabulary; never part of a planned output."""
        return self.vocab - 1

    @property
    def bytes_per_weight(self) -> int:
        """4 or 2."""
        return 4 if self.dtype == "float32" else 2

    @property
    def captured_layers(self) -> tuple[int, ...]:
        """Target layers whose *input* EAGLE-3 captures: SGLang's choice where that works, else as
        many as fit.

        SGLang captures before layers 2, L/2 and L-3. In a target of fewer than 7 layers these
        coincide (the state is captured once and the draft's input is too narrow) or do not exist,
        so a small pair names its own in the draft's ``eagle_config``.
        """
        default = (2, self.layers // 2, self.layers - 3)
        if self.uses_default_capture:
            return default
        last = self.layers - 1
        return tuple(sorted({1, max(1, (1 + last) // 2), last}))

    @property
    def uses_default_capture(self) -> bool:
        """Whether SGLang's own choice of captured layers works for this depth."""
        return self.layers >= 7

    @property
    def cycle_tokens(self) -> int:
        """Length of the cycle: a multiple of the number of classes, without BOS and EOS."""
        return (self.vocab - 2) // len(GAPS) * len(GAPS)

    def weight_bytes(self) -> int:
        """Bytes of all weights of both models."""
        h, i, v = self.hidden, self.intermediate, self.vocab
        kv = self.kv_heads * self.head_dim
        layer = 2 * h * h + 2 * kv * h + 3 * h * i + 2 * h
        target = self.layers * layer + 2 * v * h + h
        draft = (
            3 * (2 * h * h) + h * h + 3 * h * i + 4 * h + len(self.captured_layers) * h * h + v * h
        )
        return (target + draft) * self.bytes_per_weight + 9 * v


def worst_noise(hidden: int, vocab: int) -> float:
    """About the largest draft logit of any token that is not planned, anywhere in the vocabulary.

    A row of the draft's head holds up to two embeddings at the first logit; its product with
    another random sign row is about normal with deviation ``FIRST_LOGIT · √(2/hidden)``, and the
    largest of vocab² of them is near √(2·ln vocab²) deviations.
    """
    return FIRST_LOGIT * math.sqrt(2 / hidden) * math.sqrt(4 * math.log(vocab))
