"""InternLM3 (https://huggingface.co/internlm/internlm3-8b-instruct): Llama with two switches for its biases."""

from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer


def read_model(config: ConfigFields) -> Decoder:
    """Read the config: ``qkv_bias`` is for queries, keys and values, ``bias`` for all other linear layers.

    transformers writes them as ``attention_bias`` and ``mlp_bias``, and has no model in which they differ.
    """
    parts = LlamaParts.read(config, epsilon=1e-5)
    qkv_bias = config.flag("qkv_bias", config.flag("attention_bias"))
    bias = config.flag("bias", config.flag("mlp_bias"))

    def layer(tensors: Tensors, _: int) -> Layer:
        attention = parts.attention(parts.projections(tensors, qkv_bias, bias))
        return parts.pre_norm_layer(tensors, attention, parts.gated_mlp(tensors, parts.activation, bias))

    return parts.decoder(config, parts.layers(layer))


# llama.cpp writes these models as llama models.
FAMILY = Family(name="internlm3", architectures=("InternLM3ForCausalLM",), read_model=read_model)
