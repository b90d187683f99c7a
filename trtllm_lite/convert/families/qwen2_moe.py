"""Qwen1.5-MoE and Qwen2-57B-A14B (arXiv 2407.10671): Qwen2 with experts, and one expert that all tokens share."""

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.moe import (
    MOE_GGUF_KEYS,
    MOE_TENSOR_NAMES,
    MoeParts,
    expect_no_windows,
    layer_block,
    qwen_scoring,
    qwen_sparse_layers,
)
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer
from trtllm_lite.network.moe import SharedExpert

_SHARED = "model.layers.{layer}.mlp.shared_expert"
NAMES = {
    **MOE_TENSOR_NAMES,
    "shared_gate_proj": f"{_SHARED}.gate_proj",
    "shared_up_proj": f"{_SHARED}.up_proj",
    "shared_down_proj": f"{_SHARED}.down_proj",
    "shared_expert_gate": f"{_SHARED}_gate",
}


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; queries, keys and values have biases unless ``qkv_bias`` is false."""
    parts = LlamaParts.read(config, NAMES)
    layers = parts.sizes.num_hidden_layers
    expect_no_windows(config, layers)
    bias, sparse = config.flag("qkv_bias", True), qwen_sparse_layers(config, layers)
    wide = config.integer("moe_intermediate_size", 1408)
    shared_wide = config.integer("shared_expert_intermediate_size", 5632)
    experts = MoeParts.read(config, parts, wide, qwen_scoring(config))

    def shared(tensors: Tensors) -> SharedExpert:
        gate = tensors.weight("shared_expert_gate", 1, parts.sizes.hidden_size)
        return SharedExpert(parts.mlp_of(tensors, "shared_", shared_wide), gate)

    def layer(tensors: Tensors, number: int) -> Layer:
        attention = parts.attention(parts.projections(tensors, bias))
        return parts.pre_norm_layer(tensors, attention, layer_block(experts, tensors, sparse[number], shared(tensors)))

    return parts.decoder(config, parts.layers(layer))


FAMILY = Family(
    name="qwen2_moe",
    architectures=("Qwen2MoeForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    gguf=Gguf(
        "qwen2moe",
        keys={**MOE_GGUF_KEYS, "expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
        has_experts=True,
    ),
)
