"""Phi-3.5-MoE (arXiv 2404.14219): LayerNorm, biases, LongRoPE, and two experts that SparseMixer chooses.

GGUF files do not hold the threshold of SparseMixer, and replace the factor of LongRoPE's cosines and sines by the one
of Phi-3: the threshold is that of the published model, the factor that of the file.
"""

from dataclasses import replace

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.moe import MOE_GGUF_KEYS, MoeParts
from trtllm_lite.convert.parts.usual import LlamaParts, layer_norm
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.ends import Head
from trtllm_lite.network.layers import Layer
from trtllm_lite.network.sparse_mixer import SparseMixer

_MLP = "model.layers.{layer}.block_sparse_moe"
NAMES = {
    **TENSOR_NAMES,
    "router": f"{_MLP}.gate",
    "expert_gate_proj": f"{_MLP}.experts.{{expert}}.w1",
    "expert_up_proj": f"{_MLP}.experts.{{expert}}.w3",
    "expert_down_proj": f"{_MLP}.experts.{{expert}}.w2",
}
_ROPE = RopeDefaults(theta=1e6, original=4096, has_mscales=True)


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; a null or absent ``sliding_window`` means full attention."""
    parts = LlamaParts.read(config, NAMES, rope=_ROPE)
    parts = replace(parts, norm=layer_norm(config.number("rms_norm_eps", 1e-5)))
    window, bias = config.integer("sliding_window", 0), config.flag("attention_bias")
    config.take("input_jitter_noise")  # of training
    mixer = SparseMixer(2 * config.number("router_jitter_noise", 0.01, allows_zero=True))
    config.expect("num_experts_per_tok", 2)
    experts = MoeParts.read(config, parts, parts.sizes.intermediate_size, mixer)

    def layer(tensors: Tensors, _: int) -> Layer:
        attention = parts.attention(parts.projections(tensors, bias, bias), window=window)
        return parts.pre_norm_layer(tensors, attention, experts.moe(tensors))

    decoder = parts.decoder(config, parts.layers(layer))
    if not config.flag("lm_head_bias"):
        return decoder
    head = replace(decoder.head.linear, bias=parts.tensors.bias("lm_head", parts.sizes.vocab_size))
    return replace(decoder, head=Head(head))


FAMILY = Family(
    name="phimoe",
    architectures=("PhiMoEForCausalLM", "PhimoeForCausalLM"),
    read_model=read_model,
    tensor_names=NAMES,
    gguf=Gguf(
        "phimoe",
        keys={
            **MOE_GGUF_KEYS,
            "rope.scaling.original_context_length": "original_max_position_embeddings",
            "attention.sliding_window": "sliding_window",
        },
        config=lambda config: {"sliding_window": config.get("sliding_window") or None},  # 0 means none
        flags={"attention_bias": "blk.0.attn_q.bias", "lm_head_bias": "output.bias"},
        has_experts=True,
    ),
)
