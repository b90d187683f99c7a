"""Mixtral (arXiv 2401.04088): Mistral whose MLPs are mixtures of experts."""

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.moe import MOE_GGUF_KEYS, MoeParts
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer

_MLP = "model.layers.{layer}.block_sparse_moe"
NAMES = {
    **TENSOR_NAMES,
    "router": f"{_MLP}.gate",
    "expert_gate_proj": f"{_MLP}.experts.{{expert}}.w1",
    "expert_up_proj": f"{_MLP}.experts.{{expert}}.w3",
    "expert_down_proj": f"{_MLP}.experts.{{expert}}.w2",
}


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; a null or absent ``sliding_window`` means full attention."""
    parts = LlamaParts.read(config, NAMES, epsilon=1e-5, rope=RopeDefaults(theta=1e6))
    window = config.integer("sliding_window", 0)
    wide = parts.sizes.intermediate_size
    experts = MoeParts.read(config, parts, wide, "normalized_softmax")

    def layer(tensors: Tensors, _: int) -> Layer:
        attention = parts.attention(parts.projections(tensors), window=window)
        return parts.pre_norm_layer(tensors, attention, experts.moe(tensors))

    return parts.decoder(config, parts.layers(layer))


FAMILY = Family(
    name="mixtral",
    architectures=("MixtralForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    gguf=Gguf("llama", keys=MOE_GGUF_KEYS, interleaved_rope=True, has_experts=True),
)
