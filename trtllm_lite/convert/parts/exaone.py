"""Reads which layers of EXAONE's models from the fourth on have sliding windows."""

from typing import Any

from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_layer_types
from trtllm_lite.convert.parts.deepseek import NUM_DRAFTING_LAYERS
from trtllm_lite.errors import shown

EXAONE_GGUF_KEYS = {
    "attention.sliding_window": "sliding_window",
    "attention.sliding_window_pattern": "sliding_window_pattern",
}


def sliding_layers(config: ConfigFields, layers: int, window: int) -> list[bool]:
    """Which layers have a window: those named by ``layer_types``, or all but every ``sliding_window_pattern``-th.

    The layer that drafts (MTP), which is left out, may have a type, too.
    """
    pattern = config.take("sliding_window_pattern")
    is_number = type(pattern) is int and pattern > 0
    drafting = config.integer(NUM_DRAFTING_LAYERS, 0, minimum=0)
    by_pattern = [is_number and window > 0 and (n + 1) % pattern > 0 for n in range(layers)]
    slides = read_layer_types(config, by_pattern, left_out=drafting)
    if window and not is_number and config.take("layer_types") is None:
        config.problem("sliding_window_pattern", f"expected a number or layer_types beside it, found {shown(pattern)}")
    if not window and any(slides):
        config.problem("layer_types", "names sliding_attention although sliding_window is null")
    return slides


def gguf_layer_types(config: dict[str, Any]) -> dict[str, Any]:
    """Return layer_types, from the GGUF file's flag for each layer, or one flag for all layers."""
    pattern, layers = config.get("sliding_window_pattern"), config.get("num_hidden_layers")
    if not isinstance(pattern, list):
        pattern = [bool(pattern)] * (layers if isinstance(layers, int) else 0)
    types = ["sliding_attention" if slides else "full_attention" for slides in pattern]
    return {"layer_types": types, "sliding_window_pattern": None}
