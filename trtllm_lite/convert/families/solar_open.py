"""Solar Open (arXiv 2601.07022): GLM-4.5 with RoPE on whole heads, and no dense layer."""

from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.deepseek import deepseek_layers, sigmoid_experts
from trtllm_lite.convert.parts.moe import DEEPSEEK_MOE_NAMES
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Block

_ROPE = RopeDefaults(theta=1000000.0)


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; no layer reads ``intermediate_size``, which published configs have."""
    config.expect("first_k_dense_replace", 0)
    config.expect("use_qk_norm", False)
    config.assume("intermediate_size", config.take("intermediate_size") or 1)
    parts = LlamaParts.read(config, DEEPSEEK_MOE_NAMES, head_dim=128, epsilon=1e-5, rope=_ROPE)
    bias, experts = config.flag("attention_bias"), sigmoid_experts(config, parts, inner=1280, scale=1.0)

    def attention(tensors: Tensors, _: int) -> Block:
        return parts.attention(parts.projections(tensors, bias))

    return parts.decoder(config, deepseek_layers(config, parts, experts, attention, first_dense=0, num_shared=1))


# llama.cpp stores these models as GLM-4.5's; the family glm4_moe reads their files.
FAMILY = Family(
    name="solar_open",
    architectures=("SolarOpenForCausalLM",),
    read_model=read_model,
    tensor_names=DEEPSEEK_MOE_NAMES,
)
