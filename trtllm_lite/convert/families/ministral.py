"""Ministral 8B (https://mistral.ai/news/ministraux): Mistral whose config lists the layers with a window."""

from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_layer_types
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; every layer has the window unless ``layer_types`` says otherwise."""
    parts = LlamaParts.read(config)
    window = config.nullable_integer("sliding_window", 4096) or 0
    slides = read_layer_types(config, [window > 0] * parts.sizes.num_hidden_layers)

    def layer(tensors: Tensors, number: int) -> Layer:
        attention = parts.attention(parts.projections(tensors), window if slides[number] else 0)
        return parts.pre_norm_layer(tensors, attention, parts.gated_mlp(tensors, parts.activation))

    return parts.decoder(config, parts.layers(layer))


# llama.cpp has no such models: it writes them as llama models, which have no windows.
FAMILY = Family(name="ministral", architectures=("MinistralForCausalLM",), read_model=read_model)
