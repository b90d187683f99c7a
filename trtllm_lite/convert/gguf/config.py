"""Turns GGUF metadata into a Hugging Face config, so that a family reads both alike.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md describes the keys. A key of the model's architecture that is
neither mapped nor known not to matter becomes an error when the family reads the config.
"""

import math
from collections.abc import Mapping
from typing import Any

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.rope_types import FREQUENCY_FACTORS
from trtllm_lite.network.rope import yarn_attention_factor

_SIZES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
_ROPE_SCALING = {
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
    "rope.scaling.yarn_log_multiplier": "log_multiplier",
}
_YARN_FACTOR = "rope.scaling.yarn_attn_factor"
_MAPPED = ("attention.value_length", "rope.dimension_count", "rope.freq_base", "rope.scaling.type", _YARN_FACTOR)
_NEUTRAL = (
    *("vocab_size", "rope.scaling.finetuned", "tensor_data_layout"),
    *("classifier.pooling_type", "classifier.output_labels"),  # keys of heads, whose tensors are unused
    "pooling_type",  # gguf_encoder reads it
)
_TOKEN_TYPES = "tokenizer.ggml.token_type_count"
_TOKEN_IDS = {"bos_token_id": "bos_token_id", "padding_token_id": "pad_token_id"}
_END_TOKENS = ("eos_token_id", "eot_token_id", "eom_token_id")  # end of text, of a turn, of a message to a tool


def read_config(
    metadata: dict[str, Any], family: Family, tensors: Mapping[str, Any], rope_factors: Mapping[str, list[float]]
) -> dict[str, Any]:
    """Return the config of a file of ``family``; ``rope_factors``, by name, divide the RoPE frequencies.

    Unmapped keys stay in the config under their own names, so that the family reports them with all other problems.
    """
    prefix = f"{metadata['general.architecture']}."
    model = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    config: dict[str, Any] = {"architectures": [family.architectures[0]]}
    config["sliding_window"] = None  # unless a family says otherwise, llama.cpp has no windows
    declared = family.gguf or Gguf("")
    keys = {**_SIZES, **declared.keys}
    config |= {ours: _scalar(model.pop(theirs)) for theirs, ours in keys.items() if theirs in model}
    config["vocab_size"] = _vocab_size(metadata, tensors)
    config["tie_word_embeddings"] = "output.weight" not in tensors
    if declared.optional_bias:
        config["attention_bias"] = not tensors.keys().isdisjoint(("blk.0.attn_q.bias", "blk.0.attn_qkv.bias"))
        config["mlp_bias"] = "blk.0.ffn_gate.bias" in tensors
    config |= {key: name in tensors for key, name in declared.flags.items()}
    config |= {key: _lacks(tensors, *stems) for key, stems in declared.absent.items()}
    config |= {key: int(tensors[name].shape[-1]) for key, name in declared.rows.items() if name in tensors}
    config |= _head_sizes(model, config)
    config["rope_parameters"] = _rope(model, rope_factors)
    config |= _token_ids(metadata, declared.end_tokens)
    if _TOKEN_TYPES in metadata:
        config["type_vocab_size"] = metadata[_TOKEN_TYPES]
    if declared.config is not None:
        config |= declared.config(config)
    config |= {f"{prefix}{key}": value for key, value in model.items() if key not in _NEUTRAL}
    return config


def keys_read(declared: Gguf) -> set[str]:
    """The keys of the model's architecture, without its name, that :func:`read_config` maps for a family."""
    return {*_SIZES, *_ROPE_SCALING, *_NEUTRAL, *_MAPPED, *declared.keys}


def _lacks(tensors: Mapping[str, Any], first: str, second: str) -> bool:
    """Whether a layer has a matrix called ``first`` and none called ``second``."""
    having, others = ({name[: -len(end)] for name in tensors if name.endswith(end)} for end in _ends(first, second))
    return not having <= others


def _ends(*stems: str) -> list[str]:
    return [f".{stem}.weight" for stem in stems]


def _vocab_size(metadata: dict[str, Any], tensors: Mapping[str, Any]) -> int | None:
    """The number of tokens; for a file without tokens the rows of the embedding, which are last in GGUF's shapes."""
    if "tokenizer.ggml.tokens" in metadata:
        return len(metadata["tokenizer.ggml.tokens"])
    embedding = tensors.get("token_embd.weight")
    return None if embedding is None else int(embedding.shape[-1])


def _scalar(value: Any) -> Any:
    """Return ``value``; a list with a size for each layer becomes that size if all are equal."""
    return value[0] if isinstance(value, list) and len(set(value)) == 1 else value


def _head_sizes(model: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Take the sizes of heads out of ``model``; RoPE over a part of the head becomes a partial_rotary_factor."""
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    derived = hidden // heads if isinstance(hidden, int) and isinstance(heads, int) and heads else None
    head_dim = config.get("head_dim", derived)
    if model.get("attention.value_length") == head_dim:
        model.pop("attention.value_length", None)
    rotated = model.pop("rope.dimension_count", None)
    return {} if rotated is None or not head_dim else {"partial_rotary_factor": rotated / head_dim}


def _rope(model: dict[str, Any], factors: Mapping[str, list[float]]) -> dict[str, Any]:
    rope = {"rope_theta": model.pop("rope.freq_base", 10000.0)}
    kind = model.pop("rope.scaling.type", "none")
    rope["rope_type"] = "default" if kind == "none" else kind
    if "rope_freqs" in factors:
        rope |= {"rope_type": FREQUENCY_FACTORS, "factors": factors["rope_freqs"]}
    if "rope_factors_long" in factors:
        kind, lengths = "longrope", ("long", "short")
        rope |= {"rope_type": kind} | {f"{length}_factor": factors.get(f"rope_factors_{length}") for length in lengths}
    if kind != "none":
        rope |= {ours: model.pop(theirs) for theirs, ours in _ROPE_SCALING.items() if theirs in model}
    if kind == "yarn" and _YARN_FACTOR in model:
        rope |= _yarn_factor(model.pop(_YARN_FACTOR), rope["factor"])
    return rope


def _yarn_factor(given: float, factor: float) -> dict[str, float]:
    """Tell whether ``given`` is an ``attention_factor`` or an ``attn_factor``: llama.cpp writes both under one key.

    It is the former, the whole factor of YaRN, unless its product with the usual factor is 1, as for the
    ``attn_factor`` of DeepSeek-R1-0528-Qwen3-8B.
    """
    multiplies = math.isclose(given * yarn_attention_factor(factor), 1, rel_tol=1e-6)
    return {"attn_factor" if multiplies else "attention_factor": given}


def _token_ids(metadata: dict[str, Any], end_tokens: tuple[str, ...]) -> dict[str, Any]:
    ids = {key: metadata.get(f"tokenizer.ggml.{key}") for key in (*_TOKEN_IDS, *_END_TOKENS)}
    ends = [ids[key] for key in _END_TOKENS if ids[key] is not None]
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    ends += [tokens.index(token) for token in end_tokens if token in tokens]
    return {"eos_token_id": list(dict.fromkeys(ends))} | {ours: ids[key] for key, ours in _TOKEN_IDS.items()}
