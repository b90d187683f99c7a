"""How llama.cpp stores Gemma 4 (conversion/gemma.py and gguf-py/gguf/tensor_mapping.py there)."""

from typing import Any

from trtllm_lite.convert.family import Gguf
from trtllm_lite.convert.fields.decoder import MAX_LAYERS
from trtllm_lite.convert.fields.rope_types import FREQUENCY_FACTORS, PROPORTIONAL
from trtllm_lite.convert.parts.gemma import GGUF_KEYS, GGUF_ROLES
from trtllm_lite.convert.parts.gemma4 import FULL, SLIDING

# Names of the tensors that layers' inputs need, and keys that Gemma 3n has as well.
INPUT_ROLES = {
    "per_layer_token_embd": "input_embedding",
    "per_layer_model_proj": "input_model_projection",
    "per_layer_proj_norm": "input_norm",
    "blk.{layer}.inp_gate": "input_gate",
    "blk.{layer}.proj": "input_projection",
    "blk.{layer}.post_norm": "input_post_norm",
}
SHARED_KEYS = {
    **GGUF_KEYS,
    "attention.sliding_window_pattern": "slides",
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "rope.freq_base_swa": "windowed_theta",
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
}
INPUT_ROWS = {"vocab_size_per_layer_input": "per_layer_token_embd.weight"}
_USUAL_THETA = 10000.0  # of layers with a window
_NO_TURN = 1e29  # a divisor of frequencies of which no turn is left
# Keys whose values say nothing if they are those of others.
_SAME = {"value_length": "global_head_dim", "value_length_swa": "head_dim", "rotated_swa": "head_dim"}


def kinds_and_ropes(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """The kinds of layers, and the RoPE of both: that of layers without a window is the ``config``'s."""
    slides = config.pop("slides")
    windowed = {"rope_type": "default", "rope_theta": config.pop("windowed_theta", _USUAL_THETA)}
    by_layer = slides if isinstance(slides, list) else [slides] * layers
    return {
        "layer_types": [SLIDING if slide else FULL for slide in by_layer],
        "rope_parameters": {FULL: config["rope_parameters"], SLIDING: windowed},
    }


def _config(config: dict[str, Any]) -> dict[str, Any]:
    """What files say by layer: kinds, heads of keys and values, and inner features; and the RoPE."""
    for key, other in _SAME.items():
        if config.get(key) == config.get(other):
            config.pop(key, None)
    if config.get("partial_rotary_factor", 1) * config["head_dim"] == config["global_head_dim"]:
        config.pop("partial_rotary_factor", None)  # all elements of heads without a window, over those of others
    found = kinds_and_ropes(config, min(config["num_hidden_layers"], MAX_LAYERS))
    found["rope_parameters"][FULL] = _proportional(config["rope_parameters"], config["global_head_dim"])
    heads = config["num_key_value_heads"]
    if isinstance(heads, list):
        by_kind = dict(zip(found["layer_types"], heads, strict=True))
        found |= {"num_key_value_heads": by_kind[SLIDING], "num_global_key_value_heads": by_kind[FULL]}
    wide, sharing = config["intermediate_size"], config.get("num_kv_shared_layers", 0)
    if isinstance(wide, list) and wide == [wide[0]] * (len(wide) - sharing) + [2 * wide[0]] * sharing:
        found |= {"intermediate_size": wide[0], "use_double_wide_mlp": True}
    return {**found, "enable_moe_block": "num_experts" in config}


def _proportional(rope: dict[str, Any], head_dim: int) -> dict[str, Any]:
    """RoPE in Hugging Face's terms: llama.cpp divides frequencies that are not to turn by a huge number."""
    factors = rope.get("factors", [])
    turned = factors.count(1.0)
    if rope["rope_type"] != FREQUENCY_FACTORS or any(factor < _NO_TURN for factor in factors[turned:]):
        return rope
    share = {"partial_rotary_factor": 2 * turned / head_dim}
    return {"rope_type": PROPORTIONAL, "rope_theta": rope["rope_theta"], **share}


GGUF = Gguf(
    "gemma4",
    roles={
        **GGUF_ROLES,
        **INPUT_ROLES,
        "blk.{layer}.layer_output_scale": "layer_scale",
        "blk.{layer}.post_ffw_norm_1": "dense_post_norm",
        "blk.{layer}.pre_ffw_norm_2": "experts_norm",
        "blk.{layer}.post_ffw_norm_2": "experts_post_norm",
        "blk.{layer}.ffn_gate_up_exps": "experts_gate_up_proj",
        "blk.{layer}.ffn_down_exps": "experts_down_proj",
        "blk.{layer}.ffn_gate_inp.scale": "router_scale",
        "blk.{layer}.ffn_down_exps.scale": "expert_scale",
    },
    keys={
        **SHARED_KEYS,
        **{"attention.key_length": "global_head_dim", "attention.key_length_swa": "head_dim"},
        **{"attention.value_length": "value_length", "attention.value_length_swa": "value_length_swa"},
        "rope.dimension_count_swa": "rotated_swa",
        **{"expert_count": "num_experts", "expert_used_count": "top_k_experts"},
        "expert_feed_forward_length": "moe_intermediate_size",
    },
    config=_config,
    bare=("layer_scale", "experts_gate_up_proj", "experts_down_proj", "router_scale", "expert_scale"),
    without_suffix=("router_scale", "expert_scale"),
    rows=INPUT_ROWS,
    absent={"attention_k_eq_v": ("attn_k", "attn_v")},
)
