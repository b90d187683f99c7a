"""How llama.cpp stores DeepSeek's models, and mixtures of experts like theirs (conversion/deepseek.py)."""

from collections.abc import Callable
from typing import Any

from trtllm_lite.convert.family import Gguf
from trtllm_lite.convert.parts.deepseek import NUM_DRAFTING_LAYERS
from trtllm_lite.convert.parts.mamba_gguf import wrong_gguf
from trtllm_lite.convert.parts.moe import MOE_GGUF_KEYS

_SCORES = {1: "softmax", 2: "sigmoid"}  # keys are llama.cpp's numbers
_LAYER = "blk.{layer}"
CORRECTION_ROLE = {f"{_LAYER}.exp_probs_b": "correction"}
DEEPSEEK_MOE_GGUF_KEYS = {
    **MOE_GGUF_KEYS,
    "leading_dense_block_count": "first_k_dense_replace",
    "expert_shared_count": "n_shared_experts",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "expert_gating_func": "scoring_func",
    "nextn_predict_layers": NUM_DRAFTING_LAYERS,
}


def deepseek_moe_config(config: dict[str, Any]) -> dict[str, Any]:
    """The entries of experts that a file leaves out or numbers; layers that draft do not count as the model's.

    Raises ConvertError if there are no other layers.
    """
    layers, drafting = config["num_hidden_layers"], config.get(NUM_DRAFTING_LAYERS) or 0
    if not 0 <= drafting < layers:
        raise wrong_gguf(f"nextn_predict_layers to be less than block_count ({layers})", drafting)
    gating = config.get("scoring_func", 1)
    return {
        "num_hidden_layers": layers - drafting,
        "n_group": config.get("n_group", 1),
        "topk_group": config.get("topk_group", 1),
        "norm_topk_prob": config.get("norm_topk_prob", False),
        "routed_scaling_factor": config.get("routed_scaling_factor", 1.0),
        "scoring_func": _SCORES.get(gating, gating),
    }


def deepseek_gguf(gating: int, topk_method: Callable[[dict[str, Any]], str]) -> Gguf:
    """How llama.cpp stores a generation whose routers score as ``gating`` says (conversion/deepseek.py)."""
    return Gguf(
        "deepseek2",
        roles={
            f"{_LAYER}.attn_q_a": "q_a_proj",
            f"{_LAYER}.attn_q_a_norm": "q_a_norm",
            f"{_LAYER}.attn_q_b": "q_b_proj",
            f"{_LAYER}.attn_kv_a_mqa": "kv_a_proj",
            f"{_LAYER}.attn_kv_a_norm": "kv_a_norm",
            f"{_LAYER}.attn_kv_b": "kv_b_proj",  # files of 2024 do not split this tensor
            **CORRECTION_ROLE,
        },
        keys={
            **DEEPSEEK_MOE_GGUF_KEYS,
            "attention.q_lora_rank": "q_lora_rank",
            "attention.kv_lora_rank": "kv_lora_rank",
            "attention.key_length_mla": "qk_head_dim",
            "attention.value_length": "cached_value_dim",
            "attention.value_length_mla": "v_head_dim",
            "rope.dimension_count": "qk_rope_head_dim",
        },
        config=lambda config: _gguf_config(config) | {"topk_method": topk_method(config)},
        has_experts=True,
        gating=gating,
        bare=("correction",),
        by_head={"kv_b_proj": (f"{_LAYER}.attn_k_b", f"{_LAYER}.attn_v_b")},
    )


def _gguf_config(config: dict[str, Any]) -> dict[str, Any]:
    """The config with the true sizes of heads, not those of latent caches; without entries that the file leaves out."""
    rotary = config["qk_rope_head_dim"]
    whole, value = config.get("qk_head_dim", config["head_dim"]), config.get("v_head_dim", config["cached_value_dim"])
    return {
        **deepseek_moe_config(config),
        "head_dim": rotary,
        "qk_head_dim": whole,
        "qk_nope_head_dim": whole - rotary,
        "v_head_dim": value,
        "cached_value_dim": None,
        "num_key_value_heads": config["num_attention_heads"],
        "q_lora_rank": config.get("q_lora_rank") or None,
        "rope_parameters": _rope_parameters(config["rope_parameters"]),
    }


def _rope_parameters(rope: dict[str, Any]) -> dict[str, Any]:
    """YaRN's parameters with ``mscale`` and ``mscale_all_dim``; llama.cpp stores 0.1 * ``mscale_all_dim`` alone."""
    log_multiplier = rope.get("log_multiplier")
    if log_multiplier is None:
        return rope
    mscale = round(10 * log_multiplier, 6)  # the stored number is a float32
    left = {key: value for key, value in rope.items() if key != "log_multiplier"}
    return {**left, "mscale": mscale, "mscale_all_dim": mscale}
