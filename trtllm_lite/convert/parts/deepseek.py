"""Makes the layers with experts that DeepSeek's generations share."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from trtllm_lite.convert.family import Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.latent import LatentParts
from trtllm_lite.convert.parts.moe import MOE_GGUF_KEYS, MoeParts, layer_block
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.expert_groups import ExpertGroups
from trtllm_lite.network.layers import Layer
from trtllm_lite.network.moe import Scoring, SharedExpert

_MAX_GROUPS = 1024
_SCORES = {1: "softmax", 2: "sigmoid"}  # keys are llama.cpp's numbers
_LAYER = "blk.{layer}"
_OF_TRAINING = ("aux_loss_alpha", "seq_aux", "ep_size")


def deepseek_experts(
    config: ConfigFields, parts: LatentParts, scoring: Scoring, *, inner: int, scale: float
) -> MoeParts:
    """The experts; ``inner`` and ``scale`` are the generation's default inner features and factor of shares."""
    config.rename({"n_routed_experts": "num_experts"})
    config.expect("moe_layer_freq", 1)
    for key in _OF_TRAINING:
        config.take(key)
    experts = MoeParts.read(config, parts, config.integer("moe_intermediate_size", inner), scoring)
    return replace(experts, scale=config.number("routed_scaling_factor", scale))


def read_groups(
    config: ConfigFields, experts: MoeParts, *, num_best: int, defaults: tuple[int, int]
) -> ExpertGroups | None:
    """The groups of experts among which a token's experts are chosen; None if there is one group."""
    count = config.integer("n_group", defaults[0], maximum=_MAX_GROUPS)
    top = config.integer("topk_group", defaults[1])
    size, rest = divmod(experts.num_experts, count)
    if rest or size < num_best:
        groups = f"{experts.num_experts} experts into groups of {num_best} or more"
        config.problem("n_group", f"expected a number that divides {groups}, found {count}")
        return None
    if top > count or experts.top_k > top * size:
        needed = f"at most {count} groups that hold {experts.top_k} experts together"
        config.problem("topk_group", f"expected {needed}, found {top} groups of {size} experts")
        return None
    return ExpertGroups(count, top, num_best) if count > 1 else None


def deepseek_layers(
    config: ConfigFields, parts: LatentParts, experts: MoeParts, *, first_dense: int, num_shared: int
) -> tuple[Layer, ...]:
    """All layers: dense ones (``first_dense`` by default), then those with experts, ``num_shared`` of them shared."""
    dense = config.integer("first_k_dense_replace", first_dense, minimum=0)
    shared_wide = experts.intermediate_size * config.integer("n_shared_experts", num_shared)

    def layer(tensors: Tensors, number: int) -> Layer:
        shared = SharedExpert(parts.mlp_of(tensors, "shared_", shared_wide))
        block = layer_block(experts, tensors, number >= dense, shared)
        return parts.pre_norm_layer(tensors, parts.latent_attention(tensors), block)

    return parts.layers(layer)


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
            f"{_LAYER}.exp_probs_b": "correction",
        },
        keys={
            **MOE_GGUF_KEYS,
            "attention.q_lora_rank": "q_lora_rank",
            "attention.kv_lora_rank": "kv_lora_rank",
            "attention.key_length_mla": "qk_head_dim",
            "attention.value_length": "cached_value_dim",
            "attention.value_length_mla": "v_head_dim",
            "rope.dimension_count": "qk_rope_head_dim",
            "leading_dense_block_count": "first_k_dense_replace",
            "expert_shared_count": "n_shared_experts",
            "expert_weights_scale": "routed_scaling_factor",
            "expert_group_count": "n_group",
            "expert_group_used_count": "topk_group",
            "expert_gating_func": "scoring_func",
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
    gating = config.get("scoring_func", 1)
    return {
        "head_dim": rotary,
        "qk_head_dim": whole,
        "qk_nope_head_dim": whole - rotary,
        "v_head_dim": value,
        "cached_value_dim": None,
        "num_key_value_heads": config["num_attention_heads"],
        "q_lora_rank": config.get("q_lora_rank") or None,
        "n_group": config.get("n_group", 1),
        "topk_group": config.get("topk_group", 1),
        "norm_topk_prob": config.get("norm_topk_prob", False),
        "routed_scaling_factor": config.get("routed_scaling_factor", 1.0),
        "scoring_func": _SCORES.get(gating, gating),
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
