"""Qwen3.5 and its successors, such as Qwen3.6-27B, text only: Gated DeltaNet (arXiv 2412.06464) in most layers, gated
attention (arXiv 2505.06708) in the others.
"""

from collections.abc import Mapping

from trtllm_lite.convert.family import Family, Multimodal
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.delta_gguf import delta_gguf
from trtllm_lite.convert.parts.gated_delta_net import APART_TENSOR_NAMES
from trtllm_lite.convert.parts.qwen_hybrid import (
    UNUSED_TENSORS,
    MakeMlp,
    QwenHybrid,
    check_later_keys,
    predictor_family,
    predictor_names,
)
from trtllm_lite.convert.parts.qwen_media import MEDIA_KEYS
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES
from trtllm_lite.network.decoder import Decoder

NAMES = {**TENSOR_NAMES, **APART_TENSOR_NAMES}
PREDICTOR_NAMES = predictor_names(NAMES)


def read_model(config: ConfigFields) -> Decoder:
    """Read the config of the text model."""
    hybrid, mlp = _read(config, NAMES)
    return hybrid.decoder(config, hybrid.delta.block_apart, mlp)


def read_predictor(config: ConfigFields) -> Decoder:
    """Read the config of the layer with which the model drafts, which is that of the text model."""
    hybrid, mlp = _read(config, PREDICTOR_NAMES)
    return hybrid.predictor(config, mlp)


def _read(config: ConfigFields, names: Mapping[str, str]) -> tuple[QwenHybrid, MakeMlp]:
    check_later_keys(config)
    hybrid = QwenHybrid.read(config, names, by_axes=True)
    parts = hybrid.parts
    return hybrid, lambda tensors, _: parts.gated_mlp(tensors, parts.activation)


FAMILY = Family(
    name="qwen3_5",
    architectures=("Qwen3_5ForCausalLM",),
    multimodal=Multimodal(
        architectures=("Qwen3_5ForConditionalGeneration",),
        # Source: configuration_qwen3_5.py of transformers, Qwen3_5TextConfig
        defaults={
            **{"vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32},
            **{"num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 32768},
        },
        other_keys=MEDIA_KEYS,
    ),
    model_type="qwen3_5_text",
    read_model=read_model,
    tensor_names=NAMES,
    ignored_tensors=UNUSED_TENSORS,
    predictor=predictor_family("qwen3_5", ("Qwen3_5ForCausalLM",), read_predictor, PREDICTOR_NAMES),
    gguf=delta_gguf("qwen35", has_experts=False, is_apart=True),
)
