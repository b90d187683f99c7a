"""Llama with Dynamic Tanh instead of norms (arXiv 2503.10622), without the factor after the embedding."""

from dataclasses import replace

from dynamic_tanh.norm import DynamicTanh
from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer

# The source has <norm>.weight, <norm>.bias and <norm>.alpha for each norm of Llama.
_NORMS = ("attention_norm", "mlp_norm", "final_norm")
NAMES = {**TENSOR_NAMES, **{f"{role}_alpha": f"{TENSOR_NAMES[role]}.alpha" for role in _NORMS}}


def dynamic_tanh(tensors: Tensors, role: str, size: int) -> DynamicTanh:
    """What takes the place of the norm ``role`` of ``size`` features."""
    return DynamicTanh(tensors.plain(f"{role}_alpha", 1), tensors.weight(role, size), tensors.bias(role, size))


def read_model(config: ConfigFields) -> Decoder:
    """Read the config, which has the keys of Llama's."""
    parts = replace(LlamaParts.read(config, NAMES), norm=dynamic_tanh)

    def layer(tensors: Tensors, _: int) -> Layer:
        attention = parts.attention(parts.projections(tensors))
        return parts.pre_norm_layer(tensors, attention, parts.gated_mlp(tensors, parts.activation))

    return parts.decoder(config, parts.layers(layer))


FAMILY = Family(
    name="dynamic_tanh",
    architectures=("DynamicTanhForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
)
