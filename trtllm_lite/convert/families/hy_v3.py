"""Hy3 (https://huggingface.co/tencent/Hy3-preview): Qwen3's attention, and DeepSeek-V3's experts without groups.

The last layer, which predicts a further token (MTP), is left out.
"""

from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.deepseek import NUM_DRAFTING_LAYERS, deepseek_layers, sigmoid_experts
from trtllm_lite.convert.parts.moe import MOE_TENSOR_NAMES
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Block

_MLP = "model.layers.{layer}.mlp"
NAMES = {
    **MOE_TENSOR_NAMES,
    **{"router": f"{_MLP}.router.gate", "correction": f"{_MLP}.expert_bias"},
    **{f"shared_{name}_proj": f"{_MLP}.shared_mlp.{name}_proj" for name in ("gate", "up", "down")},
}
_RENAMED = {
    **{"num_shared_experts": "n_shared_experts", "router_scaling_factor": "routed_scaling_factor"},
    "expert_hidden_dim": "moe_intermediate_size",
}
# Keys of published configs that transformers does not read, as it supports no other values.
_EXPECTED = {"qk_norm": True, "route_norm": True, "moe_router_use_sigmoid": True, "moe_router_enable_expert_bias": True}
# Keys that say how a model is computed in 16 bits, or by which kernels.
_UNUSED = ("enable_moe_fp32_combine", "enable_lm_head_fp32", "enable_attention_fp32_softmax", "use_grouped_mm")


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; ``mlp_layer_types``, or else ``first_k_dense_replace``, tells which layers have experts."""
    config.rename(_RENAMED)
    for key, value in _EXPECTED.items():
        config.expect(key, value)
    for key in _UNUSED:
        config.take(key)
    config.expect("mlp_bias", False)
    parts = LlamaParts.read(config, NAMES, head_dim=128, epsilon=1e-5, rope=RopeDefaults(theta=11158840.0))
    bias, experts = config.flag("attention_bias"), sigmoid_experts(config, parts, inner=1536, scale=2.826)

    def attention(tensors: Tensors, _: int) -> Block:
        norms = parts.head_norm(tensors, "q_norm"), parts.head_norm(tensors, "k_norm")
        return parts.attention(parts.projections(tensors, bias, bias), 0, *norms)

    return parts.decoder(config, deepseek_layers(config, parts, experts, attention, first_dense=1, num_shared=1))


FAMILY = Family(
    name="hy_v3",
    architectures=("HYV3ForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    drafting_layers=NUM_DRAFTING_LAYERS,
)
