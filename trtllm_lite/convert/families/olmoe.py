"""OLMoE (arXiv 2409.02060): mixtures of experts, and norms over all queries and all keys of a token before RoPE."""

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.moe import MOE_GGUF_KEYS, MOE_TENSOR_NAMES, MoeParts, qwen_scoring
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; ``attention_bias`` gives biases to all four projections of attention."""
    parts = LlamaParts.read(config, MOE_TENSOR_NAMES, epsilon=1e-5)
    bias = config.flag("attention_bias")
    config.expect("clip_qkv", None)
    experts = MoeParts.read(config, parts, parts.sizes.intermediate_size, qwen_scoring(config))

    def layer(tensors: Tensors, _: int) -> Layer:
        return parts.pre_norm_layer(tensors, parts.attention_normed_over_heads(tensors, bias), experts.moe(tensors))

    return parts.decoder(config, parts.layers(layer))


FAMILY = Family(
    name="olmoe",
    architectures=("OlmoeForCausalLM",),
    read_model=read_model,
    tensor_names=MOE_TENSOR_NAMES,
    gguf=Gguf("olmoe", keys=MOE_GGUF_KEYS, has_experts=True),
)
