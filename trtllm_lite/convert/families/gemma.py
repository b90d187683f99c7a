"""Gemma (arXiv 2403.08295): norms multiply by 1 + w, embeddings are multiplied by sqrt(hidden_size)."""

from dataclasses import replace

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_sizes
from trtllm_lite.convert.fields.rope import read_rope
from trtllm_lite.convert.parts.usual import UsualParts, one_plus_rms_norm
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer
from trtllm_lite.network.mlp import ACTIVATIONS

_ACTIVATION = "gelu_pytorch_tanh"


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; where the first configs say gelu, the models were trained with its approximation by tanh."""
    config.expect("hidden_act", _ACTIVATION, "gelu")
    config.expect("hidden_activation", _ACTIVATION)
    config.expect("use_bidirectional_attention", False)
    sizes, bias = read_sizes(config, head_dim=256), config.flag("attention_bias")
    rope = read_rope(config, sizes.head_dim, sizes.max_position_embeddings)
    parts = UsualParts(sizes, Tensors(TENSOR_NAMES), one_plus_rms_norm(config))

    def layer(tensors: Tensors, _: int) -> Layer:
        attention = Attention(*parts.projections(tensors, bias, bias), sizes.heads, rope=rope)
        return parts.pre_norm_layer(tensors, attention, parts.gated_mlp(tensors, ACTIVATIONS[_ACTIVATION]))

    decoder = parts.decoder(config, parts.layers(layer), tied=True)
    return replace(decoder, embedding=replace(decoder.embedding, scale=sizes.hidden_size**0.5, rounds_scale=True))


FAMILY = Family(
    name="gemma",
    architectures=("GemmaForCausalLM",),
    read_model=read_model,
    gguf=Gguf("gemma", norms_plus_one=True),
)
