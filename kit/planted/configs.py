"""The small files beside the weights: configuration and tokenizer of both models."""

from __future__ import annotations

from typing import Any

from kit.planted.spec import BOS, RMS_EPS, ROPE_THETA, PairSpec


def _common(spec: PairSpec) -> dict[str, Any]:
    return {
        "attention_bias": False,
        "bos_token_id": BOS,
        "eos_token_id": spec.eos,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "hidden_size": spec.hidden,
        "intermediate_size": spec.intermediate,
        "max_position_embeddings": spec.max_positions,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": spec.heads,
        "rms_norm_eps": RMS_EPS,
        "rope_theta": ROPE_THETA,
        "tie_word_embeddings": False,
        "torch_dtype": spec.dtype,
        "vocab_size": spec.vocab,
    }


def target_config(spec: PairSpec) -> dict[str, Any]:
    """config.json of the target."""
    return {
        "architectures": ["LlamaForCausalLM"],
        **_common(spec),
        "num_hidden_layers": spec.layers,
        "num_key_value_heads": spec.kv_heads,
    }


def draft_config(spec: PairSpec) -> dict[str, Any]:
    """config.json of the draft; names the captured layers only where SGLang's own choice does not
    work."""
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        **_common(spec),
        "draft_vocab_size": spec.vocab,
        "num_hidden_layers": 1,
        "num_key_value_heads": spec.heads,
    }
    if not spec.uses_default_capture:
        # SGLang captures the output of the layer named, which is the input of the next.
        config["eagle_config"] = {
            "eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in spec.captured_layers],
            "use_aux_hidden_state": True,
        }
    return config


def tokenizer(spec: PairSpec) -> dict[str, Any]:
    """tokenizer.json: token i is the word ``t<i>``; words are separated by spaces, anything else
    is ``t0``."""
    special = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": f"t{i}", **special} for i in (BOS, spec.eos)],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {f"t{i}": i for i in range(spec.vocab)},
            "unk_token": f"t{BOS}",
        },
    }


def tokenizer_config(spec: PairSpec) -> dict[str, Any]:
    """tokenizer_config.json; the chat template joins the messages' words, so chat requests work
    too."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": f"t{BOS}",
        "eos_token": f"t{spec.eos}",
        "unk_token": f"t{BOS}",
        "model_max_length": spec.max_positions,
        "clean_up_tokenization_spaces": False,
        "chat_template": "{% for message in messages %}{{ message['content'] }} {% endfor %}",
    }
