"""How llama.cpp stores Granite 4 with Mamba-2, and Bamba (conversion/granite.py)."""

from typing import Any

from trtllm_lite.convert.family import Gguf
from trtllm_lite.convert.parts.granite import GGUF_KEYS
from trtllm_lite.convert.parts.mamba_gguf import (
    MAMBA_GGUF_ROLES,
    MAMBA_GGUF_TENSORS,
    inner_and_head_dim,
    layers_of,
    mamba_gguf_keys,
    only_size,
)
from trtllm_lite.convert.parts.moe import MOE_GGUF_KEYS

_HAS_ROPE = "rope.scaling.finetuned"


def _gguf_config(config: dict[str, Any]) -> dict[str, Any]:
    """The kinds of layers, by their key/value heads; files of Bamba are alike, with RoPE and without factors."""
    inner, head_dim = inner_and_head_dim(config, "mamba_n_heads")
    attends, attending = layers_of(config, "num_key_value_heads"), only_size(config, "num_key_value_heads")
    has_experts, wide = bool(config.get("num_experts")), config["intermediate_size"]
    scale = (config["hidden_size"] // config["num_attention_heads"]) ** -0.5
    return {
        "num_key_value_heads": attending,
        "layer_types": ["attention" if count else "mamba" for count in attends],
        "position_embedding_type": "rope" if config.pop(_HAS_ROPE, False) else None,
        "attention_multiplier": config.get("attention_multiplier", scale),
        **{"mamba_d_head": head_dim, "mamba_expand": inner // config["hidden_size"]},
        "shared_intermediate_size": config.get("shared_intermediate_size", wide),
        **{"num_local_experts": config["num_experts"] if has_experts else 0, "experts_apart": True},
    }


GRANITE_HYBRID_GGUF = Gguf(
    "granitehybrid",
    roles={
        **MAMBA_GGUF_ROLES,
        **{f"blk.{{layer}}.ffn_{name}": f"shared_{name}_proj" for name in ("gate", "up", "down")},  # without experts
    },
    keys={
        **{**GGUF_KEYS, **MOE_GGUF_KEYS, "expert_shared_feed_forward_length": "shared_intermediate_size"},
        **mamba_gguf_keys("mamba_d_conv", "mamba_d_state", "mamba_n_groups", "mamba_n_heads"),
        _HAS_ROPE: _HAS_ROPE,
    },
    config=_gguf_config,
    interleaved_rope=True,
    kinds="attention.head_count_kv",
    **MAMBA_GGUF_TENSORS,
)
