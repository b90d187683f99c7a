"""How llama.cpp stores Nemotron-H and Nemotron 3 (conversion/nemotron.py)."""

from typing import Any

from trtllm_lite.convert.parts.mamba_gguf import (
    MAMBA_GGUF_ROLES,
    inner_and_head_dim,
    layers_of,
    mamba_gguf_keys,
    only_size,
    wrong_gguf,
)
from trtllm_lite.convert.parts.moe import MOE_GGUF_KEYS

_LAYER = "blk.{layer}"
NEMOTRON_GGUF_ROLES = {
    **MAMBA_GGUF_ROLES,
    **{f"{_LAYER}.attn_norm": "norm", f"{_LAYER}.exp_probs_b": "correction"},
    **{f"{_LAYER}.ffn_latent_down": "latent_in", f"{_LAYER}.ffn_latent_up": "latent_out"},
}
_GATING, _EPSILON = "expert_gating_func", "attention.layer_norm_epsilon"
NEMOTRON_GGUF_KEYS = {
    **MOE_GGUF_KEYS,
    **mamba_gguf_keys("conv_kernel", "ssm_state_size", "n_groups", "mamba_num_heads"),
    **{"expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size"},
    **{"expert_shared_count": "n_shared_experts", "expert_weights_scale": "routed_scaling_factor"},
    **{"expert_group_count": "n_group", "expert_group_used_count": "topk_group"},
    **{name: name for name in ("moe_latent_size", _GATING, _EPSILON)},
}
_SIGMOID = 2  # llama.cpp's number of the scoring function


def nemotron_gguf_config(config: dict[str, Any]) -> dict[str, Any]:
    """The kinds of layers: attention has key/value heads, MLPs and experts have inner features, Mamba-2 has neither.

    Files repeat sizes of RoPE, which the models do not have, and may give the norms' epsilon twice.
    """
    _, head_dim = inner_and_head_dim(config, "mamba_num_heads")
    heads, wide = layers_of(config, "num_key_value_heads"), layers_of(config, "intermediate_size")
    both = [number for number, sizes in enumerate(zip(heads, wide, strict=True)) if all(sizes)]
    if both:
        raise wrong_gguf("layers with attention.head_count_kv or feed_forward_length, and none with both", both)
    if config.pop(_GATING, _SIGMOID) != _SIGMOID:
        raise wrong_gguf(f"{_GATING} to be {_SIGMOID} (sigmoid)", "another")
    epsilon = config.pop(_EPSILON, None)
    if config.setdefault("rms_norm_eps", epsilon) != epsilon and epsilon is not None:
        raise wrong_gguf(f"{_EPSILON} to be attention.layer_norm_rms_epsilon ({config['rms_norm_eps']})", epsilon)
    config.pop("partial_rotary_factor", None)
    mlp = "moe" if config.get("num_experts") else "mlp"
    return {
        "layers_block_type": [
            "attention" if kv else mlp if inner else "mamba" for kv, inner in zip(heads, wide, strict=True)
        ],
        **{"num_key_value_heads": only_size(config, "num_key_value_heads"), "mamba_head_dim": head_dim},
        "intermediate_size": only_size(config, "intermediate_size") or config["hidden_size"],
    }
