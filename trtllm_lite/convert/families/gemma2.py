"""Gemma 2 (arXiv 2408.00118): scores and logits are soft-capped, and every other layer has a sliding window."""

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.gemma import (
    GGUF_KEYS,
    GGUF_ROLES,
    NAMES,
    GemmaParts,
    capped_attention,
    gguf_score_size,
)
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer


def read_model(config: ConfigFields) -> Decoder:
    """Read the config."""
    parts = GemmaParts.read(config)
    attention = capped_attention(config, parts)

    def layer(tensors: Tensors, number: int) -> Layer:
        return parts.layer(tensors, attention(tensors, number))

    return parts.capped_decoder(config, parts.layers(layer), softcap=30.0)


FAMILY = Family(
    name="gemma2",
    architectures=("Gemma2ForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    gguf=Gguf(
        "gemma2",
        roles=GGUF_ROLES,
        keys=GGUF_KEYS,
        config=lambda config: gguf_score_size(config, largest=46),
        norms_plus_one=True,
    ),
)
