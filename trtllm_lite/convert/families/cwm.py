"""CWM (https://huggingface.co/facebook/cwm), the Code World Model: Llama with windows in three of four layers."""

from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_layer_types
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer

# RoPE of configs that do not describe it.
_ROPE = {
    **{"rope_type": "llama3", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 8192},
    **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
}


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; the first of four layers sees all tokens unless ``layer_types`` says otherwise."""
    if config.take("rope_parameters") is None and config.take("rope_scaling") is None:
        config.assume("rope_parameters", _ROPE)
    parts = LlamaParts.read(config, head_dim=128, epsilon=1e-5, rope=RopeDefaults(theta=1e6))
    window, mlp_bias = config.integer("sliding_window", 8192), config.flag("mlp_bias")
    slides = read_layer_types(config, [number % 4 != 0 for number in range(parts.sizes.num_hidden_layers)])

    def layer(tensors: Tensors, number: int) -> Layer:
        attention = parts.attention(parts.projections(tensors), window if slides[number] else 0)
        return parts.pre_norm_layer(tensors, attention, parts.gated_mlp(tensors, parts.activation, mlp_bias))

    return parts.decoder(config, parts.layers(layer))


FAMILY = Family(
    name="cwm",
    architectures=("CwmForCausalLM",),
    read_model=read_model,
)
