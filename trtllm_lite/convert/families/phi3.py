"""Phi-3, Phi-3.5, Phi-4 and their mini models (arXiv 2404.14219, 2412.08905, 2503.01743): Llama with fused projections.

Queries, keys and values are one tensor, gate and up another. Some models rotate only a part of each head, or scale RoPE
with LongRoPE.
"""

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.usual import LlamaParts, Projections
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.network.decoder import Decoder, Sizes
from trtllm_lite.network.layers import Layer
from trtllm_lite.network.linear import Linear

NAMES = {
    **TENSOR_NAMES,
    "qkv_proj": "model.layers.{layer}.self_attn.qkv_proj",
    "gate_up_proj": "model.layers.{layer}.mlp.gate_up_proj",
}
ROPE = RopeDefaults(original=4096, part=1.0)


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; a null or absent ``sliding_window`` means full attention."""
    parts = LlamaParts.read(config, NAMES, epsilon=1e-5, rope=ROPE)
    window = config.integer("sliding_window", 0)
    for key in ("interpolate_factor", "full_attn_mod"):  # Phi-4-mini has these keys, always as 1
        config.expect(key, 1)

    def layer(tensors: Tensors, _: int) -> Layer:
        attention = parts.attention(_projections(tensors, parts.sizes), window=window)
        return parts.pre_norm_layer(tensors, attention, parts.gate_up_mlp(tensors, parts.activation))

    return parts.decoder(config, parts.layers(layer))


def _projections(tensors: Tensors, sizes: Sizes) -> Projections:
    queries, keys = (heads * sizes.head_dim for heads in (sizes.num_attention_heads, sizes.num_key_value_heads))
    fused = tensors.weight("qkv_proj", queries + 2 * keys, sizes.hidden_size)
    query, key, value = (Linear(part) for part in fused.split(queries, keys, keys))
    return Projections(query, key, value, tensors.linear("o_proj", sizes.hidden_size, queries))


FAMILY = Family(
    name="phi3",
    architectures=("Phi3ForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    gguf=Gguf(
        "phi3",
        roles={"blk.{layer}.attn_qkv": "qkv_proj", "blk.{layer}.ffn_up": "gate_up_proj"},
        keys={
            "rope.scaling.original_context_length": "original_max_position_embeddings",
            "attention.sliding_window": "sliding_window",
        },
        config=lambda config: {"sliding_window": config["sliding_window"] or None},  # 0 means none
    ),
)
