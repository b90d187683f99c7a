"""Granite 3 (https://github.com/ibm-granite/granite-3.0-language-models): Llama with four constant factors."""

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.granite import GGUF_KEYS, GraniteParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; all projections of a block have biases, or none has."""
    granite, mlp_bias = GraniteParts.read(config), config.flag("mlp_bias")
    parts = granite.parts

    def layer(tensors: Tensors, _: int) -> Layer:
        mlp = parts.gated_mlp(tensors, parts.activation, mlp_bias)
        return parts.pre_norm_layer(tensors, granite.attention(tensors), mlp)

    return granite.decoder(config, parts.layers(layer))


FAMILY = Family(
    name="granite",
    architectures=("GraniteForCausalLM",),
    read_model=read_model,
    gguf=Gguf("granite", keys=GGUF_KEYS, interleaved_rope=True, optional_bias=True),
)
