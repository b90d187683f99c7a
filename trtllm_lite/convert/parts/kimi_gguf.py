"""How llama.cpp stores Kimi Linear (conversion/kimi_linear.py)."""

from typing import Any

from trtllm_lite.convert.family import Gguf
from trtllm_lite.convert.parts.mamba_gguf import layers_of, wrong_gguf
from trtllm_lite.convert.parts.moe import MOE_GGUF_KEYS

_LAYER = "blk.{layer}"
_ROLES = {
    **{f"{_LAYER}.attn_q_a": "q_a_proj", f"{_LAYER}.attn_q_a_norm": "q_a_norm", f"{_LAYER}.attn_q_b": "q_b_proj"},
    **{f"{_LAYER}.attn_kv_a_mqa": "kv_a_proj", f"{_LAYER}.attn_kv_a_norm": "kv_a_norm"},
    **{f"{_LAYER}.attn_kv_b": "kv_b_proj", f"{_LAYER}.exp_probs_b": "correction"},
    **{f"{_LAYER}.ssm_conv1d_{part}": f"{part}_conv" for part in "qkv"},
    **{f"{_LAYER}.ssm_{name}": f"{name}_proj" for name in ("f_a", "f_b", "g_a", "g_b")},
    **{f"{_LAYER}.ssm_beta": "b_proj", f"{_LAYER}.ssm_a": "a_log", f"{_LAYER}.ssm_dt": "dt_bias"},
    f"{_LAYER}.ssm_norm": "gated_norm",
}
_GATING, _SIGMOID = "expert_gating_func", 2  # llama.cpp's number of the scoring function
_KEYS = {
    **MOE_GGUF_KEYS,
    **{"attention.q_lora_rank": "q_lora_rank", "attention.kv_lora_rank": "kv_lora_rank"},
    **{"attention.key_length_mla": "qk_head_dim", "attention.value_length_mla": "v_head_dim"},
    **{"rope.dimension_count": "qk_rope_head_dim", "leading_dense_block_count": "first_k_dense_replace"},
    **{"expert_shared_count": "n_shared_experts", "expert_weights_scale": "routed_scaling_factor"},
    **{"expert_group_count": "n_group", "expert_group_used_count": "topk_group", _GATING: _GATING},
    **{"ssm.conv_kernel": "linear_conv_kernel_dim", "kda.head_dim": "linear_head_dim"},
}


def _config(config: dict[str, Any]) -> dict[str, Any]:
    """The true sizes of heads, not those of latent caches, and the kinds of layers: recurrent ones have no such cache.

    Raises ConvertError, which names the key, for sizes that are absent.
    """
    sizes = {"attention.key_length_mla": "qk_head_dim", "rope.dimension_count": "qk_rope_head_dim"}
    sizes |= {"attention.value_length_mla": "v_head_dim", "kda.head_dim": "linear_head_dim"}
    for key, ours in {**sizes, "ssm.conv_kernel": "linear_conv_kernel_dim"}.items():
        if type(config.get(ours)) is not int or config[ours] < 1:
            raise wrong_gguf(f"{key} to be a positive integer", config.get(ours))
    if config.pop(_GATING, _SIGMOID) != _SIGMOID:
        raise wrong_gguf(f"{_GATING} to be {_SIGMOID} (sigmoid)", "another")
    rotary, caches = config["qk_rope_head_dim"], layers_of(config, "num_key_value_heads")
    return {
        "layer_types": ["full_attention" if count else "linear_attention" for count in caches],
        "num_key_value_heads": config["num_attention_heads"],
        "linear_num_heads": config["num_attention_heads"],
        "qk_nope_head_dim": config["qk_head_dim"] - rotary,
        "head_dim": rotary,
        "q_lora_rank": config.get("q_lora_rank") or None,
    }


KIMI_GGUF = Gguf(
    "kimi-linear",
    roles=_ROLES,
    keys=_KEYS,
    config=_config,
    has_experts=True,
    gating=_SIGMOID,
    bare=("a_log", "dt_bias", "correction"),
    by_head={"kv_b_proj": (f"{_LAYER}.attn_k_b", f"{_LAYER}.attn_v_b")},
    without_suffix=("a_log",),
    decays=("a_log",),
    squeezed=tuple(f"{part}_conv" for part in "qkv"),
    forms={"a_log": (1, 1, -1, 1)},
    kinds="attention.head_count_kv",
)
