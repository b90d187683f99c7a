"""Llama 4 Scout and Maverick, text only (https://ai.meta.com/blog/llama-4-multimodal-intelligence).

A token has one routed expert, which reads the token times the sigmoid of its score, and a shared expert. Layers without
RoPE see all tokens and scale queries at late positions; layers with RoPE see the tokens of a chunk.
"""

from dataclasses import replace
from typing import Any

from trtllm_lite.convert.family import Family, Gguf, Multimodal
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_rotating_layers
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.llama4 import read_chunks, read_sparse_layers, read_temperature
from trtllm_lite.convert.parts.moe import MOE_GGUF_KEYS, MoeParts, scaled_inputs
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer
from trtllm_lite.network.moe import SharedExpert
from trtllm_lite.network.norms import RmsNorm
from trtllm_lite.network.weight_expression import Ones

_MLP = "model.layers.{layer}.feed_forward"
NAMES = {
    **TENSOR_NAMES,
    **{f"{name}_proj": f"{_MLP}.{name}_proj" for name in ("gate", "up", "down")},
    **{f"shared_{name}_proj": f"{_MLP}.shared_expert.{name}_proj" for name in ("gate", "up", "down")},
    "router": f"{_MLP}.router",
    "experts_gate_up_proj": f"{_MLP}.experts.gate_up_proj",
    "experts_down_proj": f"{_MLP}.experts.down_proj",
    **{f"expert_{name}_proj": f"{_MLP}.experts.{{expert}}.{name}_proj" for name in ("gate", "up", "down")},  # for GGUF
}
_NOT_NORMED_EXPERTS = 128  # experts of Maverick, by which llama.cpp, too, knows that heads are not normed


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; layers without experts have ``intermediate_size_mlp`` inner features."""
    parts = LlamaParts.read(config, NAMES, head_dim=128, epsilon=1e-5, rope=RopeDefaults(theta=5e5))
    wide, dense_wide = parts.sizes.intermediate_size, config.integer("intermediate_size_mlp", 16384)
    layers, bias = parts.sizes.num_hidden_layers, config.flag("attention_bias")
    epsilon, normed = config.number("rms_norm_eps", 1e-5), config.flag("use_qk_norm", True)
    rotates, sparse = read_rotating_layers(config, layers), read_sparse_layers(config, layers)
    windows, temperature = read_chunks(config, rotates), read_temperature(config)
    experts = MoeParts.read(config, parts, wide, "sigmoid_of_chosen")
    make = experts.moe if config.flag("experts_apart") else experts.transposed_moe

    def attention(tensors: Tensors, number: int) -> Attention:
        rotated, window = rotates[number], windows[number]
        # A norm without weights may be moved before RoPE, which keeps the lengths of heads.
        norm = RmsNorm(Ones((parts.sizes.head_dim,)), epsilon) if normed and rotated else None
        projections = parts.projections(tensors, bias, bias)
        if rotated:
            projections = projections.rotating_halves(parts.sizes, parts.rope)
            return replace(parts.attention(projections, window, norm, norm), chunked=window > 0)
        made = parts.attention(projections, window)
        return replace(made, rope=None, chunked=window > 0, temperature=temperature)

    def layer(tensors: Tensors, number: int) -> Layer:
        shared = SharedExpert(parts.mlp_of(tensors, "shared_", wide))
        dense = parts.mlp_of(tensors, "", dense_wide)
        block = scaled_inputs(make(tensors, shared)) if sparse[number] else dense
        return parts.pre_norm_layer(tensors, attention(tensors, number), block)

    return parts.decoder(config, parts.layers(layer))


def gguf_config(config: dict[str, Any]) -> dict[str, Any]:
    """The config entries that llama.cpp leaves out and derives from the number of experts."""
    return {"experts_apart": True, "use_qk_norm": config.get("num_experts") != _NOT_NORMED_EXPERTS}


FAMILY = Family(
    name="llama4",
    architectures=("Llama4ForCausalLM",),
    multimodal=Multimodal(
        architectures=("Llama4ForConditionalGeneration",),
        # Source: configuration_llama4.py of transformers, Llama4TextConfig
        defaults={
            **{"vocab_size": 202048, "hidden_size": 5120, "intermediate_size": 8192, "num_hidden_layers": 48},
            **{"num_attention_heads": 40, "num_key_value_heads": 8, "max_position_embeddings": 131072},
        },
        other_keys=("vision_config", "boi_token_index", "eoi_token_index", "image_token_index"),
    ),
    read_model=read_model,
    tensor_names=NAMES,
    model_type="llama4_text",
    gguf=Gguf(
        "llama4",
        keys={
            **MOE_GGUF_KEYS,
            **{"expert_feed_forward_length": "intermediate_size", "feed_forward_length": "intermediate_size_mlp"},
            "interleave_moe_layer_step": "interleave_moe_layer_step",
        },
        config=gguf_config,
        has_experts=True,
    ),
)
