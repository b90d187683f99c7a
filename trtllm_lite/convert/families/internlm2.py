"""InternLM 2 and 2.5 (arXiv 2403.17297; https://huggingface.co/internlm/internlm2-7b): Llama with other names.

Queries, keys and values are one tensor, in groups: the query heads that share a key head, the key head, the value head.
llama.cpp splits this tensor, so its files are read as Llama's.
"""

from trtllm_lite.convert.family import Family
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.usual import LlamaParts, Projections
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.decoder import Decoder, Sizes
from trtllm_lite.network.layers import Layer
from trtllm_lite.network.linear import Linear
from trtllm_lite.network.weight_expression import WeightExpression

NAMES = {
    "embedding": "model.tok_embeddings",
    "final_norm": "model.norm",
    "lm_head": "output",
    "attention_norm": "model.layers.{layer}.attention_norm",
    "qkv_proj": "model.layers.{layer}.attention.wqkv",
    "o_proj": "model.layers.{layer}.attention.wo",
    "mlp_norm": "model.layers.{layer}.ffn_norm",
    "gate_proj": "model.layers.{layer}.feed_forward.w1",
    "up_proj": "model.layers.{layer}.feed_forward.w3",
    "down_proj": "model.layers.{layer}.feed_forward.w2",
}


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; ``bias`` gives biases to the projections of attention, and to no others."""
    parts = LlamaParts.read(config, NAMES)
    bias = config.flag("bias", True)

    def layer(tensors: Tensors, _: int) -> Layer:
        attention = parts.attention(_projections(tensors, parts.sizes, bias))
        return parts.pre_norm_layer(tensors, attention, parts.gated_mlp(tensors, parts.activation))

    return parts.decoder(config, parts.layers(layer))


def _projections(tensors: Tensors, sizes: Sizes, bias: bool) -> Projections:
    hidden, queries = sizes.hidden_size, sizes.num_attention_heads * sizes.head_dim
    rows = queries + 2 * sizes.num_key_value_heads * sizes.head_dim
    extents = (queries // sizes.num_key_value_heads, sizes.head_dim, sizes.head_dim)
    weights = tensors.weight("qkv_proj", rows, hidden).split_heads(sizes.num_key_value_heads, *extents)
    biases: tuple[WeightExpression | None, ...] = (None, None, None)
    if bias:
        biases = tensors.bias("qkv_proj", rows).split_heads(sizes.num_key_value_heads, *extents)
    query, key, value = (Linear(*pair) for pair in zip(weights, biases, strict=True))
    return Projections(query, key, value, tensors.linear("o_proj", hidden, queries, bias))


FAMILY = Family(
    name="internlm2",
    architectures=("InternLM2ForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    ignored_tensors=(r"model\.layers\.\d+\.attention\.rotary_emb\.inv_freq",),
)
