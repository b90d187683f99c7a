"""Jais 2 (https://huggingface.co/inceptionai/Jais-2-8B-Chat): Llama with LayerNorm, and an MLP like Nemotron's."""

from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_sizes
from trtllm_lite.convert.fields.rope import read_rope
from trtllm_lite.convert.parts.usual import UsualParts, layer_norm
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer
from trtllm_lite.network.mlp import SquaredRelu


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; all projections of a block have biases unless the config says otherwise."""
    config.expect("hidden_act", "relu2")
    sizes = read_sizes(config)
    attention_bias, mlp_bias = config.flag("attention_bias", True), config.flag("mlp_bias", True)
    rope = read_rope(config, sizes.head_dim, sizes.max_position_embeddings)
    parts = UsualParts(sizes, Tensors(TENSOR_NAMES), layer_norm(config.number("layer_norm_eps", 1e-5)))

    def layer(tensors: Tensors, _: int) -> Layer:
        attention = Attention(*parts.projections(tensors, attention_bias, attention_bias), sizes.heads, rope=rope)
        return parts.pre_norm_layer(tensors, attention, parts.plain_mlp(tensors, SquaredRelu(), mlp_bias))

    return parts.decoder(config, parts.layers(layer))


FAMILY = Family(
    name="jais2",
    architectures=("Jais2ForCausalLM",),
    read_model=read_model,
)
