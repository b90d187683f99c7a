"""StableLM 3B and StableLM 2 (arXiv 2402.17834): Llama with LayerNorm and RoPE of a part of each head.

In StableLM 2 12B each query head and each key head has a LayerNorm of its own.
"""

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_activation, read_sizes
from trtllm_lite.convert.fields.rope import read_rope
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.usual import UsualParts, layer_norm
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer, ParallelLayer
from trtllm_lite.network.norms import HeadLayerNorm
from trtllm_lite.network.weight_expression import ByHead, Concat

_ATTENTION = "model.layers.{layer}.self_attn"
NAMES = {
    **TENSOR_NAMES,
    # The norms of all heads in one tensor [heads, head_dim], as in GGUF files; or one for each head.
    **{role: f"{_ATTENTION}.{role[0]}_layernorm" for role in ("q_norm", "k_norm")},
    **{f"{role}_of_head": f"{_ATTENTION}.{role[0]}_layernorm.norms.{{expert}}" for role in ("q_norm", "k_norm")},
}
_STACKED = "head_norms_stacked"


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; with ``use_parallel_residual`` attention and MLP share a norm."""
    sizes, activation = read_sizes(config), read_activation(config)
    rope = read_rope(config, sizes.head_dim, sizes.max_position_embeddings, RopeDefaults(part=0.25))
    bias, is_parallel = config.flag("use_qkv_bias"), config.flag("use_parallel_residual")
    has_head_norms, are_stacked = config.flag("qk_layernorm"), config.flag(_STACKED)
    config.expect("rotary_scaling_factor", 1.0)
    epsilon = config.number("layer_norm_eps", 1e-5)
    parts = UsualParts(sizes, Tensors(NAMES), layer_norm(epsilon))

    def head_norm(tensors: Tensors, role: str, heads: int) -> HeadLayerNorm:
        if are_stacked:
            return HeadLayerNorm(tensors.weight(role, heads, sizes.head_dim), epsilon)
        each = (tensors.of_expert(head).weight(f"{role}_of_head", sizes.head_dim) for head in range(heads))
        return HeadLayerNorm(ByHead(Concat(tuple(each)), heads), epsilon)

    def layer(tensors: Tensors, _: int) -> Layer:
        counts = {"q_norm": sizes.num_attention_heads, "k_norm": sizes.num_key_value_heads}
        norms = [head_norm(tensors, *norm) if has_head_norms else None for norm in counts.items()]
        attention = Attention(
            *parts.projections(tensors, bias), sizes.heads, rope=rope, query_norm=norms[0], key_norm=norms[1]
        )
        mlp = parts.gated_mlp(tensors, activation)
        if is_parallel:
            return ParallelLayer(parts.norm(tensors, "attention_norm", sizes.hidden_size), attention, mlp)
        return parts.pre_norm_layer(tensors, attention, mlp)

    return parts.decoder(config, parts.layers(layer))


FAMILY = Family(
    name="stablelm",
    architectures=("StableLmForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    gguf=Gguf(
        "stablelm",
        keys={"attention.layer_norm_epsilon": "layer_norm_eps", "use_parallel_residual": "use_parallel_residual"},
        # The converter writes use_parallel_residual as true where a config lacks it; llama.cpp goes by the norm.
        config=lambda config: {"use_parallel_residual": not config.pop("has_mlp_norm"), _STACKED: True},
        flags={
            "use_qkv_bias": "blk.0.attn_q.bias",
            "has_mlp_norm": "blk.0.ffn_norm.weight",
            "qk_layernorm": "blk.0.attn_q_norm.weight",
        },
    ),
)
