"""The weights of both models, shard by shard, on any torch device. Needs torch.

Everything is either a counter hash or elementwise arithmetic on exact integers, so that the same
spec gives the same bits on every device.

Embedding rows have entries ±1 (channel 0 always +1): their norm is exactly the root of the width,
bfloat16 holds them without rounding, and two rows agree only by chance. A residual stream that is
the embedding of a token plus a little noise therefore has root mean square 1, and ``head ·
embedding`` picks that token's entry.
"""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from kit.errors import UserError
from kit.planted import hashing, rotary, tree
from kit.planted.spec import EXCLUDED_LOGIT, FIRST_LOGIT, GAPS, TARGET_LOGIT, WRITE_GAIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from numpy.typing import NDArray

    from kit.planted.plan import Plan


def require_torch() -> Any:
    """The torch module.

    Raises:
        UserError: It is not installed.
    """
    try:
        return importlib.import_module("torch")
    except ImportError as err:
        raise UserError(
            "Making or checking a planted pair needs PyTorch, which is not installed here.",
            "Run `make setup` and use that environment, or install torch.",
        ) from err


class Weights:
    """Generates the tensors of a pair.

    Args:
        plan: What the pair is to do.
        device: Where to compute.
    """

    def __init__(self, plan: Plan, device: torch.device) -> None:
        """Draw the embedding; everything else is computed when asked for."""
        torch = require_torch()
        self.plan, self.spec, self.device = plan, plan.spec, device
        self.dtype = getattr(torch, self.spec.dtype)
        # The vocabulary-sized matrices: float32 [vocab, hidden].
        self.embedding = hashing.signs(
            self._key("embedding"), self.spec.vocab, self.spec.hidden, device
        )
        self.embedding[:, 0] = 1

    def target_shards(self) -> Iterator[dict[str, torch.Tensor]]:
        """The target's tensors: one shard for the vocabulary, one for each layer."""
        yield {
            "model.embed_tokens.weight": self._stored(self.embedding),
            "lm_head.weight": self._stored(self.target_head()),
            "model.norm.weight": self._ones(),
        }
        for layer in range(self.spec.layers):
            yield self._target_layer(layer)

    def target_head(self) -> torch.Tensor:
        """Row t: the embeddings of all tokens that t follows, scaled to the target logit.

        Channel 0, the constant one, says nothing about the token and is left out.
        """
        head = self.embedding.new_zeros(self.spec.vocab, self.spec.hidden)
        following = self._index(self.plan.following)
        # Off-cycle tokens share a row with the cycle's own; there are at most four of them.
        on, off = self.plan.cycle, np.setdiff1d(np.arange(self.spec.vocab), self.plan.cycle)
        for tokens in [on, *([token] for token in off)]:
            index = self._index(np.asarray(tokens))
            head[following[index]] += self.embedding[index]
        head *= float(np.float32(TARGET_LOGIT / (self.spec.hidden - 1)))
        head[:, 0] = 0
        return head

    def _target_layer(self, layer: int) -> dict[str, torch.Tensor]:
        h, inter = self.spec.hidden, self.spec.intermediate
        kv = self.spec.kv_heads * self.spec.head_dim
        name = f"model.layers.{layer}."
        unit = 1 / math.sqrt(h)
        return {
            name + "self_attn.q_proj.weight": self._random(name + "q", (h, h), unit),
            name + "self_attn.k_proj.weight": self._random(name + "k", (kv, h), unit),
            name + "self_attn.v_proj.weight": self._random(name + "v", (kv, h), unit),
            name + "self_attn.o_proj.weight": self._random(name + "o", (h, h), unit * WRITE_GAIN),
            **self._mlp(name, h, inter),
            name + "input_layernorm.weight": self._ones(),
            name + "post_attention_layernorm.weight": self._ones(),
        }

    def draft(self) -> dict[str, torch.Tensor]:
        """The draft's tensors, by the names that SGLang's EAGLE-3 Llama loads.

        The layer sees [norm(embedding of the token) | norm(hidden state)] and adds its attention
        to the hidden state. Attending to itself with values embedding - hidden and an identity
        output it replaces the hidden state by the embedding: nothing accumulates over draft steps,
        and its logits depend on the current token alone.
        """
        torch = require_torch()
        h, name = self.spec.hidden, "midlayer."
        eye = torch.eye(h, dtype=torch.float32, device=self.device)
        vector = torch.tensor(rotary.choose(self.spec).vector(), dtype=torch.float32)
        to_self = torch.zeros(h, 2 * h, dtype=torch.float32, device=self.device)
        to_self[:, 0] = vector.to(self.device).repeat(self.spec.heads)
        captured = len(self.spec.captured_layers)
        mean = torch.cat([eye] * captured, dim=1) / captured
        return {
            name + "self_attn.q_proj.weight": self._stored(to_self),
            name + "self_attn.k_proj.weight": self._stored(to_self.clone()),
            name + "self_attn.v_proj.weight": self._stored(torch.cat([eye, -eye], dim=1)),
            name + "self_attn.o_proj.weight": self._stored(eye),
            **self._mlp(name, h, self.spec.intermediate),
            name + "hidden_norm.weight": self._ones(),
            name + "input_layernorm.weight": self._ones(),
            name + "post_attention_layernorm.weight": self._ones(),
            "norm.weight": self._ones(),
            "fc.weight": self._stored(mean),
            "lm_head.weight": self._stored(self.draft_head()),
            # The draft's vocabulary is the target's: id differences 0, every target id present.
            "d2t": torch.zeros(self.spec.vocab, dtype=torch.int64),
            "t2d": torch.ones(self.spec.vocab, dtype=torch.bool),
        }

    def draft_head(self) -> torch.Tensor:
        """Row t gives t exactly the planned logit after each token that has a say about t.

        At most two tokens do: the one that t follows, and the one for which t is the wrong first
        choice. The two by two system is solved, so that the overlap of the two embeddings does not
        shift either logit.
        """
        torch = require_torch()
        plan, vocab = self.plan, self.spec.vocab
        before = np.zeros(vocab, dtype=np.int64)  # the cycle token that t follows
        before[np.roll(plan.cycle, -1)] = plan.cycle
        misled = np.zeros(vocab, dtype=np.int64)  # the cycle token that proposes t wrongly
        misled[plan.wrong[plan.cycle]] = plan.cycle

        gap = np.asarray(GAPS)[plan.token_class]
        want_right = np.choose(
            plan.kind,
            [np.full(vocab, FIRST_LOGIT), FIRST_LOGIT - gap, np.full(vocab, EXCLUDED_LOGIT)],
        )[before]
        want_wrong = np.full(vocab, FIRST_LOGIT)
        off = np.setdiff1d(np.arange(vocab), plan.cycle)
        want_right[off] = 0.0
        has_wrong = plan.kind[misled] != tree.EASY
        has_wrong[off] = False

        e1, e2 = self._index(before), self._index(misled)
        norm = self.spec.hidden - 1  # channel 0 is left out
        overlap = self._overlap(e1, e2)
        overlap[off] = 0.0
        # Solve a·norm + b·overlap = want_right, a·overlap + b·norm = want_wrong where both are
        # wanted.
        a = want_right / norm
        b = np.zeros(vocab)
        det = norm**2 - overlap**2
        both = has_wrong
        a[both] = ((want_right * norm - want_wrong * overlap) / det)[both]
        b[both] = ((want_wrong * norm - want_right * overlap) / det)[both]
        head = self.embedding[e1]
        head *= torch.tensor(a, dtype=torch.float32, device=self.device)[:, None]
        head += (
            self.embedding[e2] * torch.tensor(b, dtype=torch.float32, device=self.device)[:, None]
        )
        head[:, 0] = 0
        return head

    def _overlap(self, left: torch.Tensor, right: torch.Tensor) -> NDArray[np.float64]:
        """Scalar products of embedding rows without channel 0: small integers, exact in float32."""
        torch = require_torch()
        parts = [
            (self.embedding[i] * self.embedding[j]).sum(dim=1) - 1
            for i, j in zip(torch.split(left, 4096), torch.split(right, 4096), strict=True)
        ]
        result: NDArray[np.float64] = np.concatenate([part.cpu().numpy() for part in parts])
        return result.astype(np.float64)

    def _mlp(self, name: str, h: int, inter: int) -> dict[str, torch.Tensor]:
        unit = 1 / math.sqrt(h)
        down = WRITE_GAIN / math.sqrt(inter)
        return {
            name + "mlp.gate_proj.weight": self._random(name + "gate", (inter, h), unit),
            name + "mlp.up_proj.weight": self._random(name + "up", (inter, h), unit),
            name + "mlp.down_proj.weight": self._random(name + "down", (h, inter), down),
        }

    def _key(self, name: str) -> int:
        return hashing.stream_key(self.spec.seed, name)

    def _random(self, name: str, shape: tuple[int, ...], std: float) -> torch.Tensor:
        return hashing.uniform(self._key(name), shape, std, self.dtype, self.device).cpu()

    def _ones(self) -> torch.Tensor:
        torch = require_torch()
        ones: Any = torch.ones(self.spec.hidden, dtype=self.dtype)
        return ones  # type: ignore[no-any-return]

    def _stored(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.dtype).cpu().contiguous()

    def _index(self, array: NDArray[np.int64]) -> torch.Tensor:
        torch = require_torch()
        index: Any = torch.as_tensor(array, device=self.device)
        return index  # type: ignore[no-any-return]
