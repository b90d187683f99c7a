"""Qwen3-Next, such as Qwen3-Next-80B-A3B: Gated DeltaNet (arXiv 2412.06464) in most layers, gated attention (arXiv
2505.06708) in the others, and mixtures of experts with an expert that all tokens share.
"""

from trtllm_lite.convert.family import ROTARY_BUFFERS, Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.delta_gguf import GGUF_DRAFTING_LAYERS, GGUF_DRAFTING_TENSORS, delta_gguf
from trtllm_lite.convert.parts.gated_delta_net import APART_TENSOR_NAMES, DELTA_TENSOR_NAMES
from trtllm_lite.convert.parts.moe import (
    SHARED_EXPERT_NAMES,
    MoeParts,
    layer_block,
    qwen_scoring,
    qwen_shared_expert,
    qwen_sparse_layers,
)
from trtllm_lite.convert.parts.qwen_hybrid import QwenHybrid
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Block

NAMES = {
    **SHARED_EXPERT_NAMES,
    **DELTA_TENSOR_NAMES,
    **{role: APART_TENSOR_NAMES[role] for role in ("qkv_proj", "z_proj")},  # of GGUF files
}
_QKVZ_APART = "qkvz_apart"
# The tensors of the layer with which published models draft (MTP); the network is made without that layer.
_DRAFTING_TENSORS = (r"mtp\..*", *GGUF_DRAFTING_TENSORS)


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; layers have experts unless ``decoder_sparse_step`` or ``mlp_only_layers`` says otherwise."""
    hybrid = QwenHybrid.read(config, NAMES)
    parts, sparse = hybrid.parts, qwen_sparse_layers(config, len(hybrid.recurrent))
    experts = MoeParts.read(config, parts, config.integer("moe_intermediate_size", 512), qwen_scoring(config))
    shared_wide, is_apart = config.integer("shared_expert_intermediate_size", 512), config.flag(_QKVZ_APART)

    def mlp(tensors: Tensors, number: int) -> Block:
        return layer_block(experts, tensors, sparse[number], qwen_shared_expert(parts, tensors, shared_wide))

    return hybrid.decoder(config, lambda tensors: hybrid.delta.block(tensors, is_apart), mlp)


FAMILY = Family(
    name="qwen3_next",
    architectures=("Qwen3NextForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    ignored_tensors=(*ROTARY_BUFFERS, *_DRAFTING_TENSORS),
    drafting_layers=GGUF_DRAFTING_LAYERS,
    layouts={_QKVZ_APART: r".*\.linear_attn\.in_proj_qkv\.weight"},
    gguf=delta_gguf("qwen3next", has_experts=True, is_apart=False),
)
