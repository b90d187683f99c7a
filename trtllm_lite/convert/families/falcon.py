"""Falcon 7B, 40B, 180B and Falcon 2 11B (arXiv 2311.16867): attention and MLP in parallel, with one norm or two.

The rows of queries, keys and values are interleaved by key/value head.
"""

from dataclasses import replace

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_activation, read_sizes
from trtllm_lite.convert.fields.rope import read_rope
from trtllm_lite.convert.parts.usual import Projections, UsualParts, layer_norm
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder, Sizes
from trtllm_lite.network.layers import Layer, ParallelLayer

NAMES = {
    "embedding": "transformer.word_embeddings",
    "final_norm": "transformer.ln_f",
    "lm_head": "lm_head",
    "norm": "transformer.h.{layer}.input_layernorm",
    "attention_norm": "transformer.h.{layer}.ln_attn",
    "qkv_proj": "transformer.h.{layer}.self_attention.query_key_value",
    "o_proj": "transformer.h.{layer}.self_attention.dense",
    "mlp_norm": "transformer.h.{layer}.ln_mlp",
    "up_proj": "transformer.h.{layer}.mlp.dense_h_to_4h",
    "down_proj": "transformer.h.{layer}.mlp.dense_4h_to_h",
}
_NORMS_IN_FILE = "norms_in_file"  # of GGUF files with two norms, in which that of the MLP has the name of the only norm


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; models with ALiBi in place of RoPE (falcon-rw) are not supported."""
    config.expect("alibi", False)
    config.expect("parallel_attn", True)
    is_new = config.flag("new_decoder_architecture")
    sizes, activation = _read_sizes(config, is_new), read_activation(config, "activation", "gelu")
    rope = read_rope(config, sizes.head_dim, sizes.max_position_embeddings)
    num_norms, bias = config.integer("num_ln_in_parallel_attn", 2 if is_new else 1), config.flag("bias")
    if num_norms > (2 if is_new else 1):
        config.problem("num_ln_in_parallel_attn", f"expected 1, or 2 in the new architecture, found {num_norms}")
    mlp_norm = "norm" if config.flag(_NORMS_IN_FILE) else "mlp_norm"
    parts = UsualParts(sizes, Tensors(NAMES), layer_norm(config.number("layer_norm_epsilon", 1e-5)))

    def layer(tensors: Tensors, _: int) -> Layer:
        attention = Attention(*_projections(tensors, sizes, bias), sizes.heads, rope=rope)
        mlp = parts.plain_mlp(tensors, activation, bias)
        if num_norms == 1:
            return ParallelLayer(parts.norm(tensors, "norm", sizes.hidden_size), attention, mlp)
        first, second = (parts.norm(tensors, role, sizes.hidden_size) for role in ("attention_norm", mlp_norm))
        return ParallelLayer(first, attention, mlp, mlp_norm=second)

    return parts.decoder(config, parts.layers(layer), tied=True)


def _read_sizes(config: ConfigFields, is_new: bool) -> Sizes:
    """The sizes; without the new architecture, ``multi_query`` gives all heads one key and value."""
    config.rename({"num_kv_heads": "num_key_value_heads", "ffn_hidden_size": "intermediate_size"})
    shares = config.flag("multi_query", True) and not is_new
    wide = config.integer("intermediate_size", 4 * config.integer("hidden_size"))
    config.assume("intermediate_size", wide)
    config.assume("max_position_embeddings", config.integer("max_position_embeddings", 2048))
    config.expect("ff_factor", wide // config.integer("hidden_size"))
    sizes = read_sizes(config)
    return replace(sizes, num_key_value_heads=1) if shares else sizes


def _projections(tensors: Tensors, sizes: Sizes, bias: bool) -> Projections:
    groups, size, hidden = sizes.num_key_value_heads, sizes.head_dim, sizes.hidden_size
    queries = sizes.num_attention_heads * size
    fused = tensors.linear("qkv_proj", queries + 2 * groups * size, hidden, bias)
    query, key, value = fused.split_heads(groups, queries // groups, size, size)
    return Projections(query, key, value, tensors.linear("o_proj", hidden, queries, bias))


FAMILY = Family(
    name="falcon",
    architectures=("FalconForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    gguf=Gguf(
        "falcon",
        roles={
            **{"blk.{layer}.attn_norm": "norm", "blk.{layer}.attn_norm_2": "attention_norm"},
            "blk.{layer}.attn_qkv": "qkv_proj",
        },
        keys={"attention.layer_norm_epsilon": "layer_norm_epsilon"},
        # The new architecture has as many key/value heads as a file says, like the old one with one or all of them.
        config=lambda config: {
            "new_decoder_architecture": True,
            "num_ln_in_parallel_attn": 2 if config[_NORMS_IN_FILE] else 1,
        },
        flags={_NORMS_IN_FILE: "blk.0.attn_norm_2.weight", "bias": "blk.0.attn_qkv.bias"},
        qkv_apart=True,
    ),
)
