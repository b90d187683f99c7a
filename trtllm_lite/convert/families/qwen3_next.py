"""Qwen3-Next, such as Qwen3-Next-80B-A3B: Gated DeltaNet (arXiv 2412.06464) in most layers, gated attention (arXiv
2505.06708) in the others, and mixtures of experts with an expert that all tokens share.
"""

from collections.abc import Mapping

from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.delta_gguf import delta_gguf
from trtllm_lite.convert.parts.gated_delta_net import APART_TENSOR_NAMES, DELTA_TENSOR_NAMES
from trtllm_lite.convert.parts.moe import (
    SHARED_EXPERT_NAMES,
    MoeParts,
    layer_block,
    qwen_scoring,
    qwen_shared_expert,
    qwen_sparse_layers,
)
from trtllm_lite.convert.parts.qwen_hybrid import (
    UNUSED_TENSORS,
    MakeMlp,
    QwenHybrid,
    predictor_family,
    predictor_names,
)
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Block

NAMES = {
    **SHARED_EXPERT_NAMES,
    **DELTA_TENSOR_NAMES,
    **{role: APART_TENSOR_NAMES[role] for role in ("qkv_proj", "z_proj")},  # of GGUF files
}
PREDICTOR_NAMES = predictor_names(NAMES)
_QKVZ_APART = "qkvz_apart"


def read_model(config: ConfigFields) -> Decoder:
    """Read the config."""
    hybrid, mlp = _read(config, NAMES)
    is_apart = config.flag(_QKVZ_APART)
    return hybrid.decoder(config, lambda tensors: hybrid.delta.block(tensors, is_apart), mlp)


def read_predictor(config: ConfigFields) -> Decoder:
    """Read the config of the layer with which the model drafts, which is that of the model."""
    hybrid, mlp = _read(config, PREDICTOR_NAMES)
    return hybrid.predictor(config, mlp)


def _read(config: ConfigFields, names: Mapping[str, str]) -> tuple[QwenHybrid, MakeMlp]:
    """Layers have experts unless ``decoder_sparse_step`` or ``mlp_only_layers`` says otherwise."""
    hybrid = QwenHybrid.read(config, names)
    parts, sparse = hybrid.parts, qwen_sparse_layers(config, len(hybrid.recurrent))
    experts = MoeParts.read(config, parts, config.integer("moe_intermediate_size", 512), qwen_scoring(config))
    shared_wide = config.integer("shared_expert_intermediate_size", 512)

    def mlp(tensors: Tensors, number: int) -> Block:
        return layer_block(experts, tensors, sparse[number], qwen_shared_expert(parts, tensors, shared_wide))

    return hybrid, mlp


FAMILY = Family(
    name="qwen3_next",
    architectures=("Qwen3NextForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    ignored_tensors=UNUSED_TENSORS,
    predictor=predictor_family("qwen3_next", ("Qwen3NextForCausalLM",), read_predictor, PREDICTOR_NAMES),
    layouts={_QKVZ_APART: r".*\.linear_attn\.in_proj_qkv\.weight"},
    gguf=delta_gguf("qwen3next", has_experts=True, is_apart=False),
)
