"""StarCoder2 (arXiv 2402.19173): LayerNorm, RoPE, biases and a plain MLP, and a sliding window in every layer."""

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_activation, read_sizes
from trtllm_lite.convert.fields.rope import read_rope
from trtllm_lite.convert.parts.usual import UsualParts
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.ends import Embedding, Head
from trtllm_lite.network.layers import Layer
from trtllm_lite.network.norms import LayerNorm

NAMES = {
    **TENSOR_NAMES,
    "up_proj": "model.layers.{layer}.mlp.c_fc",
    "down_proj": "model.layers.{layer}.mlp.c_proj",
}

_OF_TRAINING = ("residual_dropout", "embedding_dropout")


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; ``use_bias`` gives biases to all linear layers but the LM head."""
    sizes, activation = read_sizes(config), read_activation(config, default="gelu_pytorch_tanh")
    config.expect("mlp_type", "default")
    config.expect("norm_type", "layer_norm")
    for key in _OF_TRAINING:
        config.take(key)
    rope = read_rope(config, sizes.head_dim, sizes.max_position_embeddings)
    epsilon, bias = config.number("norm_epsilon", 1e-5), config.flag("use_bias", True)
    window = config.nullable_integer("sliding_window", 0) or 0
    hidden = sizes.hidden_size

    def norm(tensors: Tensors, role: str, size: int) -> LayerNorm:
        return LayerNorm(tensors.weight(role, size), tensors.bias(role, size), epsilon)

    def layer(tensors: Tensors, _: int) -> Layer:
        query, key, value, output = parts.projections(tensors, bias, bias)
        attention = Attention(query, key, value, output, sizes.heads, rope=rope, window=window)
        return parts.pre_norm_layer(tensors, attention, parts.plain_mlp(tensors, activation, bias))

    parts = UsualParts(sizes, Tensors(NAMES), norm)
    table = parts.tensors.weight("embedding", sizes.vocab_size, hidden)
    head = Head(parts.head(config.flag("tie_word_embeddings", True)))
    return Decoder(sizes, Embedding(table), parts.layers(layer), norm(parts.tensors, "final_norm", hidden), head)


FAMILY = Family(
    name="starcoder2",
    architectures=("Starcoder2ForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    gguf=Gguf(
        "starcoder2",
        keys={"attention.layer_norm_epsilon": "norm_epsilon", "attention.sliding_window": "sliding_window"},
    ),
)
