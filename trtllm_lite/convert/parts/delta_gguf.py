"""How llama.cpp stores Qwen's models with Gated DeltaNet (conversion/qwen.py)."""

from typing import Any

from trtllm_lite.convert.family import Gguf
from trtllm_lite.convert.parts.mamba_gguf import wrong_gguf
from trtllm_lite.convert.parts.moe import MOE_GGUF_KEYS

DRAFTING_LAYERS = "mtp_num_hidden_layers"
_LAYER = "blk.{layer}"
_ROLES = {
    **{f"{_LAYER}.post_attention_norm": "mlp_norm", f"{_LAYER}.attn_qkv": "qkv_proj", f"{_LAYER}.attn_gate": "z_proj"},
    **{f"{_LAYER}.ssm_conv1d": "conv", f"{_LAYER}.ssm_a": "a_log", f"{_LAYER}.ssm_dt": "dt_bias"},
    **{f"{_LAYER}.ssm_norm": "gated_norm", f"{_LAYER}.ssm_out": "delta_out_proj"},
}
# Layers that draft (MTP) come after the others, and have these tensors besides those of a layer with attention.
_ROLES |= {f"{_LAYER}.nextn.enorm": "embedding_norm", f"{_LAYER}.nextn.hnorm": "state_norm"}
_ROLES |= {f"{_LAYER}.nextn.eh_proj": "projection", f"{_LAYER}.nextn.shared_head_norm": "final_norm"}
_APART_ROLES = {f"{_LAYER}.ssm_alpha": "a_proj", f"{_LAYER}.ssm_beta": "b_proj"}
# Files of the first weeks hold queries, keys, values and gates in one tensor.
_FUSED_ROLES = {f"{_LAYER}.ssm_ba": "ba_proj", f"{_LAYER}.ssm_in": "qkvz_proj"}
_SIZES = {
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
    "ssm.inner_size": "linear_value_head_dim",
}
_SECTIONS, _RECURRENT = "rope.dimension_sections", "attention.recurrent_layers"
_KEYS = {
    **_SIZES,
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "full_attention_interval": "full_attention_interval",
    "nextn_predict_layers": DRAFTING_LAYERS,
    _SECTIONS: _SECTIONS,
    _RECURRENT: _RECURRENT,
}
# The axis of value heads in tensors whose value heads are reordered.
_TILED = {**dict.fromkeys(("qkv_proj", "z_proj", "a_proj", "b_proj", "conv", "a_log", "dt_bias"), 0)}
_TILED["delta_out_proj"] = 1


def delta_gguf(architecture: str, has_experts: bool, is_apart: bool) -> Gguf:
    """The files of ``architecture``; with ``is_apart``, from Qwen3.5 on, a matrix makes a and another one b."""
    return Gguf(
        architecture,
        roles={**_ROLES, **(_APART_ROLES if is_apart else _FUSED_ROLES)},
        keys={**_KEYS, **(MOE_GGUF_KEYS if has_experts else {})},
        config=_config,
        norms_plus_one=True,
        has_experts=has_experts,
        bare=("a_log", "dt_bias"),
        without_suffix=("a_log",),
        decays=("a_log",),
        squeezed=("conv",),
        plain_norms=("gated_norm",),
        tiled_heads=_TILED if is_apart else {},
        drafting_layers=DRAFTING_LAYERS,
    )


def _config(config: dict[str, Any]) -> dict[str, Any]:
    """Sizes of heads and kinds of layers; llama.cpp divides the shares of experts by their sum in all these models.

    Raises ConvertError, which names the key, for sizes that are absent or contradict each other.
    """
    inner, values, layers = _value_dims(config), config["linear_num_value_heads"], config["num_hidden_layers"]
    drafting = config.get(DRAFTING_LAYERS, 0)
    if not 0 <= drafting < layers:
        raise wrong_gguf(f"nextn_predict_layers to be less than block_count ({layers})", drafting)
    found: dict[str, Any] = {"linear_value_head_dim": inner // values, "num_hidden_layers": layers - drafting}
    if "num_experts" in config:
        found["norm_topk_prob"] = True
    if (sections := config.pop(_SECTIONS, None)) is not None:
        found["rope_parameters"] = {**config["rope_parameters"], "mrope_section": sections}
    if (recurrent := config.pop(_RECURRENT, None)) is not None:
        kinds = recurrent if isinstance(recurrent, list) else [recurrent] * layers
        if len(kinds) != layers:
            raise wrong_gguf(f"{_RECURRENT} to have {layers} entries", len(kinds))
        found["layer_types"] = ["linear_attention" if kind else "full_attention" for kind in kinds[: layers - drafting]]
    return found


def _value_dims(config: dict[str, Any]) -> int:
    """The features of all value heads, which the value heads share equally, and the key heads share those."""
    sizes = {key: _positive(key, config.get(ours)) for key, ours in _SIZES.items()}
    keys, values, inner = (sizes[f"ssm.{name}"] for name in ("group_count", "time_step_rank", "inner_size"))
    if values % keys:
        raise wrong_gguf(f"ssm.time_step_rank to be a multiple of ssm.group_count ({keys})", values)
    if inner % values:
        raise wrong_gguf(f"ssm.inner_size to be a multiple of ssm.time_step_rank ({values})", inner)
    return inner


def _positive(key: str, size: Any) -> int:
    if type(size) is not int or size < 1:
        raise wrong_gguf(f"{key} to be a positive integer", size)
    return size
