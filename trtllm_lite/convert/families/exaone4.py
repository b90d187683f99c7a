"""EXAONE 4 (arXiv 2507.11407): RMS norms of query and key heads, and a norm after each block instead of before it.

Large models have sliding windows in most layers, and no position encoding in the others.
"""

from typing import Any

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_layer_types
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.errors import shown
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer

NAMES = {name: tensor for name, tensor in TENSOR_NAMES.items() if name not in ("attention_norm", "mlp_norm")} | {
    "attention_post_norm": "model.layers.{layer}.post_attention_layernorm",
    "mlp_post_norm": "model.layers.{layer}.post_feedforward_layernorm",
}


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; with a null ``sliding_window`` every layer sees all tokens and has RoPE."""
    parts = LlamaParts.read(config, NAMES, epsilon=1e-5)
    sizes, window = parts.sizes, config.nullable_integer("sliding_window", 4096) or 0
    slides = _sliding_layers(config, sizes.num_hidden_layers, window)

    def layer(tensors: Tensors, number: int) -> Layer:
        attention = Attention(
            *parts.projections(tensors),
            sizes.heads,
            rope=parts.rope if slides[number] or not window else None,
            query_norm=parts.head_norm(tensors, "q_norm"),
            key_norm=parts.head_norm(tensors, "k_norm"),
            window=window if slides[number] else 0,
        )
        return parts.post_norm_layer(tensors, attention, parts.gated_mlp(tensors, parts.activation))

    return parts.decoder(config, parts.layers(layer))


def _sliding_layers(config: ConfigFields, layers: int, window: int) -> list[bool]:
    """Which layers have a window: those named by ``layer_types``, or all but every ``sliding_window_pattern``-th."""
    pattern = config.take("sliding_window_pattern")
    is_number = type(pattern) is int and pattern > 0
    slides = read_layer_types(config, [is_number and window > 0 and (n + 1) % pattern > 0 for n in range(layers)])
    if window and not is_number and config.take("layer_types") is None:
        config.problem("sliding_window_pattern", f"expected a number or layer_types beside it, found {shown(pattern)}")
    if not window and any(slides):
        config.problem("layer_types", "names sliding_attention although sliding_window is null")
    return slides


def _gguf_layer_types(config: dict[str, Any]) -> dict[str, Any]:
    """Return layer_types, from the GGUF file's flag for each layer, or one flag for all layers."""
    pattern, layers = config.get("sliding_window_pattern"), config.get("num_hidden_layers")
    if not isinstance(pattern, list):
        pattern = [bool(pattern)] * (layers if isinstance(layers, int) else 0)
    types = ["sliding_attention" if slides else "full_attention" for slides in pattern]
    return {"layer_types": types, "sliding_window_pattern": None}


FAMILY = Family(
    name="exaone4",
    architectures=("Exaone4ForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    gguf=Gguf(
        "exaone4",
        roles={
            "blk.{layer}.post_attention_norm": "attention_post_norm",
            "blk.{layer}.post_ffw_norm": "mlp_post_norm",
        },
        keys={
            "attention.sliding_window": "sliding_window",
            "attention.sliding_window_pattern": "sliding_window_pattern",
        },
        config=_gguf_layer_types,
    ),
)
