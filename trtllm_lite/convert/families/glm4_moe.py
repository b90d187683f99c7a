"""GLM-4.5, 4.6 and 4.7 (arXiv 2508.06471): DeepSeek-V3's experts, RoPE on half of each head.

The last layer, which predicts a further token (MTP), is left out.
"""

from trtllm_lite.convert.family import GGUF_DRAFTING_TENSORS, ROTARY_BUFFERS, Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.deepseek import NUM_DRAFTING_LAYERS, deepseek_layers, sigmoid_experts
from trtllm_lite.convert.parts.deepseek_gguf import CORRECTION_ROLE, DEEPSEEK_MOE_GGUF_KEYS, deepseek_moe_config
from trtllm_lite.convert.parts.moe import DEEPSEEK_MOE_NAMES
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Block


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; large models have norms of query and key heads, as ``use_qk_norm`` says."""
    parts = LlamaParts.read(config, DEEPSEEK_MOE_NAMES, epsilon=1e-5, rope=RopeDefaults(part=0.5))
    bias, has_norms = config.flag("attention_bias"), config.flag("use_qk_norm")
    experts = sigmoid_experts(config, parts, inner=1408, scale=1.0)

    def attention(tensors: Tensors, _: int) -> Block:
        norms = (parts.head_norm(tensors, role) if has_norms else None for role in ("q_norm", "k_norm"))
        return parts.attention(parts.projections(tensors, bias), 0, *norms)

    return parts.decoder(config, deepseek_layers(config, parts, experts, attention, first_dense=1, num_shared=1))


FAMILY = Family(
    name="glm4_moe",
    architectures=("Glm4MoeForCausalLM",),
    read_model=read_model,
    tensor_names=DEEPSEEK_MOE_NAMES,
    ignored_tensors=(*ROTARY_BUFFERS, *GGUF_DRAFTING_TENSORS),
    gguf=Gguf(
        "glm4moe",
        roles={**CORRECTION_ROLE, "blk.{layer}.post_attention_norm": "mlp_norm"},
        keys=DEEPSEEK_MOE_GGUF_KEYS,
        config=deepseek_moe_config,
        optional_bias=True,
        flags={"use_qk_norm": "blk.0.attn_q_norm.weight"},
        has_experts=True,
        bare=("correction",),
    ),
    drafting_layers=NUM_DRAFTING_LAYERS,
)
