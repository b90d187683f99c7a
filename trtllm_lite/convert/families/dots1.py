"""dots.llm1 (arXiv 2506.05767): Qwen3's attention, DeepSeek-V3's experts."""

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_layer_types
from trtllm_lite.convert.parts.deepseek import deepseek_layers, sigmoid_experts
from trtllm_lite.convert.parts.deepseek_gguf import CORRECTION_ROLE, DEEPSEEK_MOE_GGUF_KEYS, deepseek_moe_config
from trtllm_lite.convert.parts.moe import DEEPSEEK_MOE_NAMES
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Block


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; unless ``sliding_window`` is null, layers from ``max_window_layers`` on have windows."""
    parts = LlamaParts.read(config, DEEPSEEK_MOE_NAMES)
    window, first = config.nullable_integer("sliding_window", 4096), config.integer("max_window_layers", 62, minimum=0)
    slides = [window is not None and number >= first for number in range(parts.sizes.num_hidden_layers)]
    slides, bias = read_layer_types(config, slides), config.flag("attention_bias")
    if window is None and any(slides):
        config.problem("layer_types", "names sliding_attention although sliding_window is null")
    experts = sigmoid_experts(config, parts, inner=1408, scale=1.0, normalized=False)

    def attention(tensors: Tensors, number: int) -> Block:
        norms = parts.head_norm(tensors, "q_norm"), parts.head_norm(tensors, "k_norm")
        projections = parts.projections(tensors, bias, bias)
        return parts.attention(projections, (window or 0) if slides[number] else 0, *norms)

    return parts.decoder(config, deepseek_layers(config, parts, experts, attention, first_dense=0, num_shared=2))


FAMILY = Family(
    name="dots1",
    architectures=("Dots1ForCausalLM",),
    read_model=read_model,
    tensor_names=DEEPSEEK_MOE_NAMES,
    gguf=Gguf(
        "dots1",
        roles=CORRECTION_ROLE,
        keys=DEEPSEEK_MOE_GGUF_KEYS,
        # The first converter did not write the function that scores, which is that of all these models.
        config=lambda config: {**deepseek_moe_config(config), "scoring_func": "sigmoid"},
        has_experts=True,
        bare=("correction",),
    ),
)
