"""GLM-4 of 2024, as transformers stores it (arXiv 2406.12793): a norm before each block."""

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.glm import GGUF_ROLES, NAMES, GlmParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer


def read_model(config: ConfigFields) -> Decoder:
    """Read the config."""
    parts = GlmParts.read(config)

    def layer(tensors: Tensors, _: int) -> Layer:
        return parts.usual.pre_norm_layer(tensors, *parts.blocks(tensors))

    return parts.usual.decoder(config, parts.usual.layers(layer))


FAMILY = Family(
    name="glm",
    architectures=("GlmForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    gguf=Gguf("chatglm", roles=GGUF_ROLES, optional_bias=True),
)
