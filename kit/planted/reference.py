"""The EAGLE-3 draft layer, read plainly from its weights: no engine, no kernels, no batching
tricks.

The order of operations follows SGLang 0.5.12's ``models/llama_eagle3.py``: embedding and captured
hidden states → fc → [input_layernorm(embedding) | hidden_norm(hidden)] → attention →
post_attention_layernorm → MLP → norm → lm_head, with the residual carried beside it. Needs torch.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

if TYPE_CHECKING:
    from pathlib import Path

_QUERY_BLOCK = 512


@dataclass
class DraftState:
    """Keys and values of one sequence, each [positions, heads, head size]."""

    keys: torch.Tensor
    values: torch.Tensor


@dataclass
class DraftOutput:
    """Outputs for each position.

    Attributes:
        logits: float32 [positions, vocab].
        hidden: Hidden states before the last norm, which the next draft step takes, [positions,
            hidden].
        self_weight: Smallest attention weight, over heads, that the position gives itself, float32.
    """

    logits: torch.Tensor
    hidden: torch.Tensor
    self_weight: torch.Tensor


class ReferenceDraft:
    """A draft of one EAGLE-3 layer.

    Args:
        folder: The draft's folder (config.json, model.safetensors).
        embedding: The target's embedding, [vocab, hidden]; the draft shares it.
    """

    def __init__(self, folder: Path, embedding: torch.Tensor) -> None:
        """Load the weights to the embedding's device."""
        self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        device = embedding.device
        self.weights = load_file(folder / "model.safetensors", device=str(device))
        self.embedding = embedding
        self.heads = int(self.config["num_attention_heads"])
        self.kv_heads = int(self.config["num_key_value_heads"])
        self.head_dim = int(self.config["head_dim"])
        exponent = torch.arange(0, self.head_dim, 2, dtype=torch.float32, device=device)
        self.inverse_frequency = 1.0 / (
            float(self.config["rope_theta"]) ** (exponent / self.head_dim)
        )

    def fuse(self, captured: list[torch.Tensor]) -> torch.Tensor:
        """The draft's first hidden states from the target's captured ones, each [positions,
        hidden]."""
        return F.linear(torch.cat(captured, dim=-1), self.weights["fc.weight"])

    def extend(
        self, tokens: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor
    ) -> tuple[DraftOutput, DraftState]:
        """Run a whole sequence, causally: position j takes token j and hidden state j."""
        query, key, value = self._qkv(tokens, hidden, positions)
        index = torch.arange(tokens.numel(), device=tokens.device)
        attended, own_weight = [], []
        for rows in torch.split(index, _QUERY_BLOCK):
            seen = slice(0, int(rows[-1]) + 1)
            score = self._score("qhd,khd->qhk", query[rows], key[seen])
            hide = index[seen] > rows[:, None]
            weight = torch.softmax(score.masked_fill(hide[:, None], -torch.inf), dim=-1)
            attended.append(self._mix("qhk,khd->qhd", weight, value[seen]))
            own_weight.append(weight.gather(2, rows[:, None, None].expand(-1, self.heads, 1)))
        output = self._finish(torch.cat(attended), hidden)
        output.self_weight = torch.cat(own_weight)[..., 0].amin(dim=1)
        return output, DraftState(key, value)

    def branch(
        self,
        state: DraftState,
        prefix: torch.Tensor,
        tokens: torch.Tensor,
        hidden: torch.Tensor,
        own: DraftState | None,
    ) -> tuple[DraftOutput, DraftState]:
        """One draft step of many independent branches of the same sequence.

        Args:
            state: The sequence's keys and values.
            prefix: How many of its positions each branch sees, [branches].
            tokens: The token each branch adds, [branches].
            hidden: The hidden state from which it was proposed, [branches, hidden].
            own: Keys and values of the branch's earlier steps, [branches, steps, heads, size];
                None at first.

        Returns:
            The step's output and the branch's keys and values with this step added.
        """
        done = 0 if own is None else own.keys.shape[1]
        query, key, value = self._qkv(tokens, hidden, prefix + done)
        key, value = key[:, None], value[:, None]
        if own is not None:
            key, value = torch.cat([own.keys, key], 1), torch.cat([own.values, value], 1)
        seen = int(prefix.max())
        hide = torch.arange(seen, device=tokens.device) >= prefix[:, None]
        before = self._score("bhd,khd->bhk", query, state.keys[:seen])
        before = before.masked_fill(hide[:, None], -torch.inf)
        after = self._score("bhd,bkhd->bhk", query, key)
        weight = torch.softmax(torch.cat([before, after], dim=-1), dim=-1)
        attended = self._mix("bhk,khd->bhd", weight[..., :seen], state.values[:seen])
        attended = attended + self._mix("bhk,bkhd->bhd", weight[..., seen:], value)
        output = self._finish(attended, hidden)
        output.self_weight = weight[..., -1].amin(dim=1)
        return output, DraftState(key, value)

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(
            wide.pow(2).mean(-1, keepdim=True) + float(self.config["rms_norm_eps"])
        )
        return wide.to(x.dtype) * self.weights[name]

    def _qkv(
        self, tokens: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        name = "midlayer."
        embedded = self._norm(F.embedding(tokens, self.embedding), name + "input_layernorm.weight")
        both = torch.cat([embedded, self._norm(hidden, name + "hidden_norm.weight")], dim=-1)
        query, key, value = (
            F.linear(both, self.weights[f"{name}self_attn.{x}_proj.weight"]).view(
                tokens.numel(), -1, self.head_dim
            )
            for x in "qkv"
        )
        return self._rotate(query, positions), self._rotate(key, positions), value

    def _rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotary embedding; tables rounded to the model's type, as SGLang has them off CUDA."""
        angle = positions.float()[:, None] * self.inverse_frequency
        cos, sin = angle.cos().to(x.dtype)[:, None], angle.sin().to(x.dtype)[:, None]
        left, right = x.chunk(2, dim=-1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)

    def _score(self, how: str, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        key = key.repeat_interleave(self.heads // self.kv_heads, dim=-2)
        return torch.einsum(how, query, key).float() / math.sqrt(self.head_dim)

    def _mix(self, how: str, weight: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        value = value.repeat_interleave(self.heads // self.kv_heads, dim=-2)
        return torch.einsum(how, weight.to(value.dtype), value)

    def _finish(self, attended: torch.Tensor, residual: torch.Tensor) -> DraftOutput:
        name = "midlayer."
        attended = attended.flatten(1)
        hidden = residual + F.linear(attended, self.weights[name + "self_attn.o_proj.weight"])
        x = self._norm(hidden, name + "post_attention_layernorm.weight")
        gate = F.silu(F.linear(x, self.weights[name + "mlp.gate_proj.weight"]))
        up = F.linear(x, self.weights[name + "mlp.up_proj.weight"])
        hidden = hidden + F.linear(gate * up, self.weights[name + "mlp.down_proj.weight"])
        logits = F.linear(self._norm(hidden, "norm.weight"), self.weights["lm_head.weight"])
        return DraftOutput(logits.float(), hidden, hidden.new_empty(0, dtype=torch.float32))
