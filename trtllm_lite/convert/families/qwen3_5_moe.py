"""Qwen3.5 with mixtures of experts, such as Qwen3.5-35B-A3B, text only: Qwen3.5 but for the MLPs."""

from collections.abc import Mapping

from trtllm_lite.convert.family import Family, Multimodal
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.delta_gguf import delta_gguf
from trtllm_lite.convert.parts.gated_delta_net import APART_TENSOR_NAMES
from trtllm_lite.convert.parts.moe import (
    SHARED_EXPERT_NAMES,
    STACKED_EXPERT_NAMES,
    STACKED_EXPERTS,
    MoeParts,
    qwen_shared_expert,
)
from trtllm_lite.convert.parts.qwen_hybrid import (
    UNUSED_TENSORS,
    MakeMlp,
    QwenHybrid,
    check_later_keys,
    predictor_family,
    predictor_names,
)
from trtllm_lite.convert.parts.qwen_media import MEDIA_KEYS
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Block

NAMES = {
    **SHARED_EXPERT_NAMES,
    **APART_TENSOR_NAMES,
    # Published files in 16 bits hold all experts of a layer in two tensors, those in fp8 hold each matrix on its own.
    **STACKED_EXPERT_NAMES,
}
PREDICTOR_NAMES = predictor_names(NAMES)
_IN_TWO_TENSORS = "experts_in_two_tensors"


def read_model(config: ConfigFields) -> Decoder:
    """Read the config of the text model."""
    hybrid, mlp = _read(config, NAMES)
    return hybrid.decoder(config, hybrid.delta.block_apart, mlp)


def read_predictor(config: ConfigFields) -> Decoder:
    """Read the config of the layer with which the model drafts, which is that of the text model."""
    hybrid, mlp = _read(config, PREDICTOR_NAMES)
    return hybrid.predictor(config, mlp)


def _read(config: ConfigFields, names: Mapping[str, str]) -> tuple[QwenHybrid, MakeMlp]:
    """All layers have experts, whose inner size is the only one."""
    check_later_keys(config)
    if config.take("intermediate_size") is None:
        config.rename({"moe_intermediate_size": "intermediate_size"})
    hybrid = QwenHybrid.read(config, names, by_axes=True)
    parts, wide = hybrid.parts, config.integer("moe_intermediate_size", 512)
    experts = MoeParts.read(config, parts, wide, "normalized_softmax")
    config.expect("norm_topk_prob", True)
    shared_wide = config.integer("shared_expert_intermediate_size", 512)
    make = experts.stacked_moe if config.flag(_IN_TWO_TENSORS) else experts.moe

    def mlp(tensors: Tensors, _: int) -> Block:
        return make(tensors, qwen_shared_expert(parts, tensors, shared_wide))

    return hybrid, mlp


FAMILY = Family(
    name="qwen3_5_moe",
    architectures=("Qwen3_5MoeForCausalLM",),
    multimodal=Multimodal(
        architectures=("Qwen3_5MoeForConditionalGeneration",),
        # Source: configuration_qwen3_5_moe.py of transformers, Qwen3_5MoeTextConfig
        defaults={
            **{"vocab_size": 248320, "hidden_size": 2048, "num_hidden_layers": 40, "max_position_embeddings": 32768},
            **{"num_attention_heads": 16, "num_key_value_heads": 2, "num_experts": 256, "num_experts_per_tok": 8},
        },
        other_keys=MEDIA_KEYS,
    ),
    model_type="qwen3_5_moe_text",
    read_model=read_model,
    tensor_names=NAMES,
    ignored_tensors=UNUSED_TENSORS,
    predictor=predictor_family(
        "qwen3_5_moe",
        ("Qwen3_5MoeForCausalLM",),
        read_predictor,
        PREDICTOR_NAMES,
        {_IN_TWO_TENSORS: r"mtp\..*\.mlp\.experts\.gate_up_proj"},
    ),
    gguf=delta_gguf("qwen35moe", has_experts=True, is_apart=True),
    layouts={_IN_TWO_TENSORS: STACKED_EXPERTS},
)
