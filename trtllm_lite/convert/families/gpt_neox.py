"""GPT-NeoX and Pythia (arXiv 2204.06745, 2304.01373; https://github.com/EleutherAI/gpt-neox).

Attention and MLP run in parallel, each with a LayerNorm, or one after the other; RoPE rotates a part of each head, and
the rows of queries, keys and values are interleaved by head.
"""

from dataclasses import replace

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_activation, read_sizes
from trtllm_lite.convert.fields.rope import read_rope
from trtllm_lite.convert.fields.rope_types import RopeDefaults
from trtllm_lite.convert.parts.usual import Projections, UsualParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder, Sizes
from trtllm_lite.network.ends import Embedding, Head
from trtllm_lite.network.layers import Layer, ParallelLayer
from trtllm_lite.network.linear import Linear
from trtllm_lite.network.norms import LayerNorm

NAMES = {
    "embedding": "gpt_neox.embed_in",
    "final_norm": "gpt_neox.final_layer_norm",
    "lm_head": "embed_out",
    "attention_norm": "gpt_neox.layers.{layer}.input_layernorm",
    "qkv_proj": "gpt_neox.layers.{layer}.attention.query_key_value",
    "o_proj": "gpt_neox.layers.{layer}.attention.dense",
    "mlp_norm": "gpt_neox.layers.{layer}.post_attention_layernorm",
    "up_proj": "gpt_neox.layers.{layer}.mlp.dense_h_to_4h",
    "down_proj": "gpt_neox.layers.{layer}.mlp.dense_4h_to_h",
}


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; ``attention_bias`` concerns attention alone, the MLP always has biases."""
    sizes, activation = _read_sizes(config), read_activation(config, default="gelu")
    usual = RopeDefaults(config.number("rotary_emb_base", 10000.0), part=config.number("rotary_pct", 0.25))
    rope = read_rope(config, sizes.head_dim, sizes.max_position_embeddings, usual)
    epsilon, bias = config.number("layer_norm_eps", 1e-5), config.flag("attention_bias", True)
    is_parallel = config.flag("use_parallel_residual", True)
    hidden = sizes.hidden_size

    def norm(tensors: Tensors, role: str, size: int) -> LayerNorm:
        return LayerNorm(tensors.weight(role, size), tensors.bias(role, size), epsilon)

    def layer(tensors: Tensors, _: int) -> Layer:
        attention = Attention(*_projections(tensors, sizes, bias), sizes.heads, rope=rope)
        mlp = parts.plain_mlp(tensors, activation, bias=True)
        if not is_parallel:
            return parts.pre_norm_layer(tensors, attention, mlp)
        first, second = (norm(tensors, role, hidden) for role in ("attention_norm", "mlp_norm"))
        return ParallelLayer(first, attention, mlp, mlp_norm=second)

    parts = UsualParts(sizes, Tensors(NAMES), norm)
    table = parts.tensors.weight("embedding", sizes.vocab_size, hidden)
    head = Head(parts.head(config.flag("tie_word_embeddings")))
    return Decoder(sizes, Embedding(table), parts.layers(layer), norm(parts.tensors, "final_norm", hidden), head)


def _read_sizes(config: ConfigFields) -> Sizes:
    sizes = read_sizes(config)
    config.expect("num_key_value_heads", sizes.num_attention_heads)
    return replace(sizes, num_key_value_heads=sizes.num_attention_heads)


def _projections(tensors: Tensors, sizes: Sizes, bias: bool) -> Projections:
    heads, size = sizes.num_attention_heads, sizes.head_dim
    weights = tensors.weight("qkv_proj", 3 * heads * size, sizes.hidden_size).split_heads(heads, size, size, size)
    biases = tensors.bias("qkv_proj", 3 * heads * size).split_heads(heads, size, size, size)
    fused = zip(weights, biases, strict=True)
    query, key, value = (Linear(weight, own if bias else None) for weight, own in fused)
    return Projections(query, key, value, tensors.linear("o_proj", sizes.hidden_size, heads * size, bias))


FAMILY = Family(
    name="gpt_neox",
    architectures=("GPTNeoXForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    # The causal mask and RoPE's frequencies, saved by old versions.
    ignored_tensors=(r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",),
    gguf=Gguf(
        "gptneox",
        roles={"blk.{layer}.attn_qkv": "qkv_proj"},
        keys={
            "attention.layer_norm_epsilon": "layer_norm_eps",
            "use_parallel_residual": "use_parallel_residual",
        },
        qkv_apart=True,
    ),
)
