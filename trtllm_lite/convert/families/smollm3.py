"""SmolLM3 (https://huggingface.co/blog/smollm3): Llama, some of whose layers have no RoPE (NoPE, arXiv 2501.18795)."""

from dataclasses import replace

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_layer_types, read_rotating_layers
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer

ROPE = RopeDefaults(theta=2000000.0)


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; with ``use_sliding_window`` the layers that it names, or those without RoPE, have the window."""
    parts = LlamaParts.read(config, rope=ROPE)
    attention_bias, mlp_bias = config.flag("attention_bias"), config.flag("mlp_bias")
    rotates = read_rotating_layers(config, parts.sizes.num_hidden_layers)
    window = config.integer("sliding_window", 0) * config.flag("use_sliding_window")
    config.take("max_window_layers")  # published configs have it, and the models ignore it
    slides = read_layer_types(config, [window > 0 and not rotated for rotated in rotates])

    def layer(tensors: Tensors, number: int) -> Layer:
        projections = parts.projections(tensors, attention_bias, attention_bias)
        attention = parts.attention(projections, window if slides[number] else 0)
        if not rotates[number]:
            attention = replace(attention, rope=None)
        return parts.pre_norm_layer(tensors, attention, parts.gated_mlp(tensors, parts.activation, mlp_bias))

    return parts.decoder(config, parts.layers(layer), tied=True)


FAMILY = Family(
    name="smollm3",
    architectures=("SmolLM3ForCausalLM",),
    read_model=read_model,
    gguf=Gguf("smollm3", interleaved_rope=True, optional_bias=True),  # every fourth layer has no RoPE
)
