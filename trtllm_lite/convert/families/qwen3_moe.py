"""Qwen3 with mixtures of experts (arXiv 2505.09388), such as Qwen3-30B-A3B: Qwen3 but for the MLPs."""

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


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; ``attention_bias`` gives biases to all four projections of attention."""
    parts = LlamaParts.read(config, MOE_TENSOR_NAMES)
    layers = parts.sizes.num_hidden_layers
    expect_no_windows(config, layers)
    config.expect("use_qk_norm", True)
    bias, sparse = config.flag("attention_bias"), qwen_sparse_layers(config, layers)
    wide = config.integer("moe_intermediate_size", 768)
    experts = MoeParts.read(config, parts, wide, qwen_scoring(config))

    def layer(tensors: Tensors, number: int) -> Layer:
        norms = parts.head_norm(tensors, "q_norm"), parts.head_norm(tensors, "k_norm")
        attention = parts.attention(parts.projections(tensors, bias, bias), 0, *norms)
        return parts.pre_norm_layer(tensors, attention, layer_block(experts, tensors, sparse[number]))

    return parts.decoder(config, parts.layers(layer))


FAMILY = Family(
    name="qwen3_moe",
    architectures=("Qwen3MoeForCausalLM",),
    read_model=read_model,
    tensor_names=MOE_TENSOR_NAMES,
    # llama.cpp divides shares by their sum in all Qwen3 mixtures of experts.
    gguf=Gguf("qwen3moe", keys=MOE_GGUF_KEYS, config=lambda _: {"norm_topk_prob": True}, has_experts=True),
)
