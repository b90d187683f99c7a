"""Qwen1.5-MoE and Qwen2-57B-A14B (arXiv 2407.10671): Qwen2 with experts, and one expert that all tokens share."""

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.moe import (
    MOE_GGUF_KEYS,
    SHARED_EXPERT_NAMES,
    MoeParts,
    expect_no_windows,
    layer_block,
    qwen_scoring,
    qwen_shared_expert,
    qwen_sparse_layers,
)
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; queries, keys and values have biases unless ``qkv_bias`` is false."""
    parts = LlamaParts.read(config, SHARED_EXPERT_NAMES)
    layers = parts.sizes.num_hidden_layers
    expect_no_windows(config, layers)
    bias, sparse = config.flag("qkv_bias", True), qwen_sparse_layers(config, layers)
    wide = config.integer("moe_intermediate_size", 1408)
    shared_wide = config.integer("shared_expert_intermediate_size", 5632)
    experts = MoeParts.read(config, parts, wide, qwen_scoring(config))

    def layer(tensors: Tensors, number: int) -> Layer:
        attention = parts.attention(parts.projections(tensors, bias))
        shared = qwen_shared_expert(parts, tensors, shared_wide)
        return parts.pre_norm_layer(tensors, attention, layer_block(experts, tensors, sparse[number], shared))

    return parts.decoder(config, parts.layers(layer))


FAMILY = Family(
    name="qwen2_moe",
    architectures=("Qwen2MoeForCausalLM",),
    read_model=read_model,
    tensor_names=SHARED_EXPERT_NAMES,
    gguf=Gguf(
        "qwen2moe",
        keys={**MOE_GGUF_KEYS, "expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
        has_experts=True,
    ),
)
