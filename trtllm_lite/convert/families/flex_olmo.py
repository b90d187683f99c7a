"""FlexOlmo (arXiv 2507.07024): OLMo 2 with mixtures of experts, each trained on data of its own."""

from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.moe import MOE_TENSOR_NAMES, MoeParts, qwen_scoring
from trtllm_lite.convert.parts.olmo import NAMES as OLMO_NAMES
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer

NAMES = {**OLMO_NAMES, **{role: name for role, name in MOE_TENSOR_NAMES.items() if role not in TENSOR_NAMES}}


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; ``attention_bias`` gives biases to all four projections of attention."""
    parts = LlamaParts.read(config, NAMES, rope=RopeDefaults(theta=500000.0))
    bias = config.flag("attention_bias")
    experts = MoeParts.read(config, parts, parts.sizes.intermediate_size, qwen_scoring(config))

    def layer(tensors: Tensors, _: int) -> Layer:
        return parts.post_norm_layer(tensors, parts.attention_normed_over_heads(tensors, bias), experts.moe(tensors))

    return parts.decoder(config, parts.layers(layer))


FAMILY = Family(name="flex_olmo", architectures=("FlexOlmoForCausalLM",), read_model=read_model, tensor_names=NAMES)
