"""Gemma 2 (arXiv 2408.00118): scores and logits are soft-capped, and every other layer has a sliding window."""

from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_layer_types
from trtllm_lite.convert.fields.rope import read_rope
from trtllm_lite.convert.parts.gemma import GGUF_KEYS, GGUF_ROLES, NAMES, GemmaParts, gguf_score_size
from trtllm_lite.convert.sources.source_tensors import Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.layers import Layer


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; the first layer has a window unless ``layer_types`` says otherwise; a null cap caps nothing."""
    parts = GemmaParts.read(config)
    sizes = parts.sizes
    rope = read_rope(config, sizes.head_dim, sizes.max_position_embeddings)
    slides = read_layer_types(config, [number % 2 == 0 for number in range(sizes.num_hidden_layers)])
    window = config.nullable_integer("sliding_window", 4096) or 0
    softcap = config.nullable_number("attn_logit_softcapping", 50.0) or 0.0

    def layer(tensors: Tensors, number: int) -> Layer:
        attention = Attention(
            *parts.projections(tensors, parts.bias, parts.bias),
            sizes.heads,
            scale=parts.scale,
            rope=rope,
            window=window if slides[number] else 0,
            softcap=softcap,
        )
        return parts.layer(tensors, attention)

    return parts.capped_decoder(config, parts.layers(layer), softcap=30.0)


FAMILY = Family(
    name="gemma2",
    architectures=("Gemma2ForCausalLM",),
    read_model=read_model,
    tensor_names=NAMES,
    gguf=Gguf(
        "gemma2",
        roles=GGUF_ROLES,
        keys=GGUF_KEYS,
        config=lambda config: gguf_score_size(config, largest=46),
        norms_plus_one=True,
    ),
)
