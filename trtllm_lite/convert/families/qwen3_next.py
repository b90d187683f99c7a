"""Qwen3-Next, such as Qwen3-Next-80B-A3B: Gated DeltaNet (arXiv 2412.06464) in most layers, gated attention (arXiv
2505.06708) in the others, and mixtures of experts with an expert that all tokens share.
"""

from dataclasses import replace

from trtllm_lite.common.vocabulary import RECURRENT
from trtllm_lite.convert.family import ROTARY_BUFFERS, Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.gated_delta_net import DELTA_TENSOR_NAMES, DeltaParts, read_recurrent_layers
from trtllm_lite.convert.parts.moe import (
    SHARED_EXPERT_NAMES,
    MoeParts,
    layer_block,
    qwen_scoring,
    qwen_shared_expert,
    qwen_sparse_layers,
)
from trtllm_lite.convert.parts.usual import LlamaParts, one_plus_rms_norm
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.gated_delta_net import DeltaHeads
from trtllm_lite.network.layers import Layer

NAMES = {**SHARED_EXPERT_NAMES, **DELTA_TENSOR_NAMES}
_HEADS = DeltaHeads(num_key_heads=16, num_value_heads=32, key_dim=128, value_dim=128)
# The tensors of the layer with which published models draft (MTP); the network is made without that layer.
_DRAFTING_TENSORS = (r"mtp\..*",)


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; every fourth layer has attention unless ``layer_types`` says otherwise."""
    parts = LlamaParts.read(config, NAMES, head_dim=256, rope=RopeDefaults(part=0.25))
    parts = replace(parts, norm=one_plus_rms_norm(config))
    for key, value in (("hidden_act", "silu"), ("use_sliding_window", False)):
        config.expect(key, value)
    layers, delta = parts.sizes.num_hidden_layers, DeltaParts.read(config, parts, _HEADS)
    recurrent, sparse = read_recurrent_layers(config, layers), qwen_sparse_layers(config, layers)
    experts = MoeParts.read(config, parts, config.integer("moe_intermediate_size", 512), qwen_scoring(config))
    shared_wide, bias = config.integer("shared_expert_intermediate_size", 512), config.flag("attention_bias")

    def layer(tensors: Tensors, number: int) -> Layer:
        shared = qwen_shared_expert(parts, tensors, shared_wide)
        mlp = layer_block(experts, tensors, sparse[number], shared)
        if recurrent[number]:
            return replace(parts.pre_norm_layer(tensors, delta.block(tensors), mlp), name=RECURRENT)
        return parts.pre_norm_layer(tensors, _attention(parts, tensors, bias), mlp)

    return parts.decoder(config, parts.layers(layer))


def _attention(parts: LlamaParts, tensors: Tensors, bias: bool) -> Attention:
    """Attention with a gate, which is fused with the queries: of each head first its query, then its gate."""
    heads, hidden = parts.sizes.heads, parts.sizes.hidden_size
    fused = tensors.linear("q_proj", 2 * heads.num_heads * heads.head_dim, hidden, bias)
    query, gate = fused.split_heads(heads.num_heads, heads.head_dim, heads.head_dim)
    norms = parts.head_norm(tensors, "q_norm"), parts.head_norm(tensors, "k_norm")
    projections = parts.projections(tensors, bias, bias)._replace(query=query)
    return replace(parts.attention(projections, 0, *norms), gate=gate)


FAMILY = Family(
    name="qwen3_next",
    architectures=("Qwen3NextForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    ignored_tensors=(*ROTARY_BUFFERS, *_DRAFTING_TENSORS),
)
