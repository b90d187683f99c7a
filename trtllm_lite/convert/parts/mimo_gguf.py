"""How llama.cpp stores MiMo-V2-Flash (conversion/mimo.py)."""

from typing import Any

from trtllm_lite.convert.family import Gguf
from trtllm_lite.convert.parts.deepseek_gguf import CORRECTION_ROLE, DEEPSEEK_MOE_GGUF_KEYS, deepseek_moe_config

_SIGMOID = 2  # llama.cpp's number of the scoring function


def _config(config: dict[str, Any]) -> dict[str, Any]:
    """The entries that a file leaves out or gives for each layer; layers that draft come last in its lists.

    A file has the window of config.json, which does not count a query's own token.
    """
    found = deepseek_moe_config({"scoring_func": _SIGMOID, **config})
    layers, pattern = found["num_hidden_layers"], config.get("hybrid_layer_pattern")
    rope = {"rope_parameters": {"full_attention": config["rope_parameters"]}}
    found |= {**rope, "norm_topk_prob": True, "n_shared_experts": None}  # llama.cpp divides shares by their sum
    if not isinstance(pattern, list):
        return found
    slides = [int(value) for value in pattern[:layers]]
    return {**found, "hybrid_layer_pattern": slides, **_key_heads(config.get("num_key_value_heads"), slides)}


def _key_heads(counts: Any, slides: list[int]) -> dict[str, int]:
    """The key/value heads of layers without a window and with one, if all layers of a kind have as many."""
    each = counts if isinstance(counts, list) else [counts] * len(slides)
    kinds = (("num_key_value_heads", 0), ("swa_num_key_value_heads", 1))
    found = {key: {count for count, of in zip(each, slides, strict=False) if of == kind} for key, kind in kinds}
    return {key: values.pop() for key, values in found.items() if len(values) == 1}


MIMO_GGUF = Gguf(
    "mimo2",
    roles={**CORRECTION_ROLE, "blk.{layer}.attn_sinks.weight": "sinks"},
    keys={
        **DEEPSEEK_MOE_GGUF_KEYS,
        "attention.sliding_window": "sliding_window_size",
        "attention.sliding_window_pattern": "hybrid_layer_pattern",
        "attention.value_length": "v_head_dim",
        "attention.value_scale": "attention_value_scale",
        "rope.freq_base_swa": "swa_rope_theta",
    },
    config=_config,
    has_experts=True,
    bare=("correction", "sinks"),
    without_suffix=("sinks",),  # whose name in Hugging Face's files ends like that of a bias
)
