"""Command A and R7B (arXiv 2504.00698; Cohere2 in transformers): Command R with sliding windows in most layers.

Layers without a window have no position encoding.
"""

from dataclasses import replace

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_layer_types
from trtllm_lite.convert.fields.rope_types import USUAL_ROPE
from trtllm_lite.convert.parts.cohere import EXPECTED, GGUF_KEYS, CohereParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; every ``sliding_window_pattern``-th layer sees all tokens unless ``layer_types`` is given."""
    parts = CohereParts.read(config, USUAL_ROPE)
    for key, value in EXPECTED.items():
        config.expect(key, value)
    window, pattern = config.nullable_integer("sliding_window", 4096), config.integer("sliding_window_pattern", 4)
    config.expect("layer_switch", pattern)
    layers = parts.sizes.num_hidden_layers
    slides = read_layer_types(config, [(number + 1) % pattern != 0 for number in range(layers)])
    if window is None:
        config.problem("sliding_window", "expected a positive integer, found none")

    def layer(tensors: Tensors, number: int) -> Layer:
        attention = parts.attention(tensors)
        if slides[number]:
            return parts.layer(tensors, replace(attention, window=window or 1))
        return parts.layer(tensors, replace(attention, rope=None))

    return parts.scaled_decoder(config, parts.layers(layer))


FAMILY = Family(
    name="cohere2",
    architectures=("Cohere2ForCausalLM",),
    read_model=read_model,
    gguf=Gguf("cohere2", keys={**GGUF_KEYS, "attention.sliding_window": "sliding_window"}),
)
