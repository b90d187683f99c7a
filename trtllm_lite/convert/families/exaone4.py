"""EXAONE 4 (arXiv 2507.11407): RMS norms of query and key heads, and a norm after each block instead of before it.

Large models have sliding windows in most layers, and no position encoding in the others.
"""

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.parts.exaone import EXAONE_GGUF_KEYS, gguf_layer_types, sliding_layers
from trtllm_lite.convert.parts.usual import LlamaParts
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer

NAMES = {name: tensor for name, tensor in TENSOR_NAMES.items() if name not in ("attention_norm", "mlp_norm")} | {
    "attention_post_norm": "model.layers.{layer}.post_attention_layernorm",
    "mlp_post_norm": "model.layers.{layer}.post_feedforward_layernorm",
}


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; with a null ``sliding_window`` every layer sees all tokens and has RoPE."""
    parts = LlamaParts.read(config, NAMES, epsilon=1e-5)
    sizes, window = parts.sizes, config.nullable_integer("sliding_window", 4096) or 0
    slides = sliding_layers(config, sizes.num_hidden_layers, window)

    def layer(tensors: Tensors, number: int) -> Layer:
        attention = Attention(
            *parts.projections(tensors),
            sizes.heads,
            rope=parts.rope if slides[number] or not window else None,
            query_norm=parts.head_norm(tensors, "q_norm"),
            key_norm=parts.head_norm(tensors, "k_norm"),
            window=window if slides[number] else 0,
        )
        return parts.post_norm_layer(tensors, attention, parts.gated_mlp(tensors, parts.activation))

    return parts.decoder(config, parts.layers(layer))


FAMILY = Family(
    name="exaone4",
    architectures=("Exaone4ForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    gguf=Gguf(
        "exaone4",
        roles={
            "blk.{layer}.post_attention_norm": "attention_post_norm",
            "blk.{layer}.post_ffw_norm": "mlp_post_norm",
        },
        keys=EXAONE_GGUF_KEYS,
        config=gguf_layer_types,
    ),
)
