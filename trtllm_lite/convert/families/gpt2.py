"""GPT-2 ("Language Models are Unsupervised Multitask Learners", 2019; https://github.com/openai/gpt-2).

The models have LayerNorm before each block, learned positions, a plain MLP, biases everywhere, and matrices stored as
[in_features, out_features].
"""

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import MAX_LAYERS, read_activation
from trtllm_lite.convert.parts.usual import UsualParts
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder, Sizes
from trtllm_lite.network.ends import Embedding, Head
from trtllm_lite.network.layers import Layer
from trtllm_lite.network.linear import Linear
from trtllm_lite.network.mlp import PlainMlp
from trtllm_lite.network.norms import LayerNorm

NAMES = {
    "embedding": "transformer.wte",
    "positions": "transformer.wpe",
    "final_norm": "transformer.ln_f",
    "lm_head": "lm_head",
    "attention_norm": "transformer.h.{layer}.ln_1",
    "qkv_proj": "transformer.h.{layer}.attn.c_attn",
    "o_proj": "transformer.h.{layer}.attn.c_proj",
    "mlp_norm": "transformer.h.{layer}.ln_2",
    "up_proj": "transformer.h.{layer}.mlp.c_fc",
    "down_proj": "transformer.h.{layer}.mlp.c_proj",
}
# Keys that concern heads other than the language model's, or the order in which the same values are computed.
_NO_MATHEMATICS = (
    *(f"summary_{key}" for key in ("type", "use_proj", "activation", "proj_to_labels", "first_dropout")),
    "reorder_and_upcast_attn",
)


def read_model(config: ConfigFields) -> Decoder:
    """Read the config, whose keys have other names than most families'."""
    sizes, epsilon = _read_sizes(config), config.number("layer_norm_epsilon", 1e-5)
    activation = read_activation(config, "activation_function", "gelu_new")
    scale = sizes.head_dim**-0.5 if config.flag("scale_attn_weights", True) else 1.0
    by_layer = config.flag("scale_attn_by_inverse_layer_idx")
    for key in _NO_MATHEMATICS:
        config.take(key)
    hidden, wide = sizes.hidden_size, sizes.intermediate_size

    def norm(tensors: Tensors, role: str, size: int) -> LayerNorm:
        return LayerNorm(tensors.weight(role, size), tensors.bias(role, size), epsilon)

    def layer(tensors: Tensors, number: int) -> Layer:
        weights = tensors.weight("qkv_proj", hidden, 3 * hidden).transpose().split(hidden, hidden, hidden)
        biases = tensors.bias("qkv_proj", 3 * hidden).split(hidden, hidden, hidden)
        query, key, value = (Linear(part, bias) for part, bias in zip(weights, biases, strict=True))
        output, up = _linear(tensors, "o_proj", hidden, hidden), _linear(tensors, "up_proj", hidden, wide)
        attention = Attention(query, key, value, output, sizes.heads, scale / (number + 1) if by_layer else scale)
        mlp = PlainMlp(up, _linear(tensors, "down_proj", wide, hidden), activation)
        return parts.pre_norm_layer(tensors, attention, mlp)

    parts = UsualParts(sizes, Tensors(NAMES), norm)
    table = parts.tensors.weight("embedding", sizes.vocab_size, hidden)
    positions = parts.tensors.weight("positions", sizes.max_position_embeddings, hidden)
    head = parts.head(tied=config.flag("tie_word_embeddings", True))
    final_norm = norm(parts.tensors, "final_norm", hidden)
    return Decoder(sizes, Embedding(table, positions=positions), parts.layers(layer), final_norm, Head(head))


def _read_sizes(config: ConfigFields) -> Sizes:
    hidden, heads, positions = config.integer("n_embd"), config.integer("n_head"), config.integer("n_positions")
    if hidden % heads:
        config.problem("n_embd", f"expected a multiple of n_head ({heads}), found {hidden}")
    config.expect("n_ctx", positions)  # the old name of n_positions
    inner, layers = config.integer("n_inner", 4 * hidden), config.integer("n_layer", maximum=MAX_LAYERS)
    return Sizes(config.integer("vocab_size"), hidden, inner, layers, heads, heads, max(hidden // heads, 1), positions)


def _linear(tensors: Tensors, role: str, in_features: int, out_features: int) -> Linear:
    return Linear(tensors.weight(role, in_features, out_features).transpose(), tensors.bias(role, out_features))


FAMILY = Family(
    name="gpt2",
    architectures=("GPT2LMHeadModel",),
    read_model=read_model,
    tensor_names=NAMES,
    ignored_tensors=(r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",),  # the causal mask, saved by old versions
    optional_prefix="transformer.",
    gguf=Gguf(
        "gpt2",
        roles={"position_embd": "positions", "blk.{layer}.attn_qkv": "qkv_proj"},
        keys={
            **{"block_count": "n_layer", "context_length": "n_positions", "embedding_length": "n_embd"},
            **{"feed_forward_length": "n_inner", "attention.head_count": "n_head"},
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
        },
        config=lambda _: {"rope_parameters": None},
        transposed=("qkv_proj", "o_proj", "up_proj", "down_proj"),
    ),
)
