"""Qwen3 with mixtures of experts (arXiv 2505.09388), such as Qwen3-30B-A3B: Qwen3 but for the MLPs."""

from trtllm_lite.convert.family import Family, Gguf, Multimodal
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.moe import (
    MOE_GGUF_KEYS,
    MOE_TENSOR_NAMES,
    STACKED_EXPERT_NAMES,
    STACKED_EXPERTS,
    MoeParts,
    expect_no_windows,
    qwen_scoring,
    qwen_sparse_layers,
)
from trtllm_lite.convert.parts.qwen_media import MEDIA_GGUF_KEYS, MEDIA_KEYS, text_config
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer

# Qwen3-VL holds all experts of a layer in two tensors: matrices [in, out], as transformers 5 writes them [out, in].
NAMES = {**MOE_TENSOR_NAMES, **STACKED_EXPERT_NAMES}
_IN_TWO_TENSORS, _TRANSPOSED = "experts_in_two_tensors", "experts_transposed"


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; ``attention_bias`` gives biases to all four projections of attention."""
    parts = LlamaParts.read(config, NAMES, rope=RopeDefaults(by_axes=True))
    layers = parts.sizes.num_hidden_layers
    expect_no_windows(config, layers)
    config.expect("use_qk_norm", True)
    bias, sparse = config.flag("attention_bias"), qwen_sparse_layers(config, layers)
    wide = config.integer("moe_intermediate_size", 768)
    experts = MoeParts.read(config, parts, wide, qwen_scoring(config))
    make = experts.moe
    if config.flag(_IN_TWO_TENSORS):
        make = experts.transposed_moe if config.flag(_TRANSPOSED) else experts.stacked_moe

    def layer(tensors: Tensors, number: int) -> Layer:
        norms = parts.head_norm(tensors, "q_norm"), parts.head_norm(tensors, "k_norm")
        attention = parts.attention(parts.projections(tensors, bias, bias), 0, *norms)
        block = make(tensors) if sparse[number] else parts.gated_mlp(tensors, parts.activation)
        return parts.pre_norm_layer(tensors, attention, block)

    return parts.decoder(config, parts.layers(layer))


FAMILY = Family(
    name="qwen3_moe",
    architectures=("Qwen3MoeForCausalLM",),
    multimodal=Multimodal(
        architectures=("Qwen3VLMoeForConditionalGeneration",),
        # Source: configuration_qwen3_vl_moe.py of transformers, Qwen3VLMoeTextConfig
        defaults={
            **{"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24},
            **{"num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 128000},
            **{"head_dim": 128, "moe_intermediate_size": 1408, "num_experts_per_tok": 4},
            "norm_topk_prob": True,  # transformers has no such key, and divides always
        },
        other_keys=MEDIA_KEYS,
        model_types=("qwen3_vl_moe_text",),
    ),
    read_model=read_model,
    tensor_names=NAMES,
    layouts={
        _IN_TWO_TENSORS: STACKED_EXPERTS,
        _TRANSPOSED: (STACKED_EXPERTS, lambda config, shape: shape[1:2] == (config.get("hidden_size"),)),
    },
    # llama.cpp divides shares by their sum in all Qwen3 mixtures of experts.
    gguf=Gguf(
        "qwen3moe",
        keys={**MOE_GGUF_KEYS, **MEDIA_GGUF_KEYS},
        config=lambda config: {"norm_topk_prob": True, **text_config(config)},
        has_experts=True,
        also=("qwen3vlmoe",),
    ),
)
