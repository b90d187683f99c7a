"""Granite 3 (https://github.com/ibm-granite/granite-3.0-language-models): Llama with four constant factors.

They are on embeddings, on scores (instead of 1/sqrt(head_dim)), on what each block adds to the residual stream, and
below the logits. The residual stream is held here divided by its factor: blocks then add to it as they are, because
norms cancel a factor if their epsilon is divided by its square, and embeddings are multiplied anyway.
"""

from dataclasses import replace

from trtllm_lite.convert.config_fields import ConfigFields
from trtllm_lite.convert.family import Family, Gguf
from trtllm_lite.convert.source_tensors import Tensors
from trtllm_lite.convert.usual_parts import LlamaParts
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.ends import Embedding, Head
from trtllm_lite.network.layers import Layer


def read_model(config: ConfigFields) -> Decoder:
    """Read the config; absent factors are 1."""
    residual, embedding = _factor(config, "residual_multiplier"), _factor(config, "embedding_multiplier")
    attention, logits = _factor(config, "attention_multiplier"), _factor(config, "logits_scaling")
    parts = LlamaParts.read(config, stream_scale=residual)
    attention_bias, mlp_bias = config.flag("attention_bias"), config.flag("mlp_bias")

    def layer(tensors: Tensors, _: int) -> Layer:
        block = parts.attention(parts.projections(tensors, attention_bias, attention_bias))
        mlp = parts.gated_mlp(tensors, parts.activation, mlp_bias)
        return parts.pre_norm_layer(tensors, replace(block, scale=attention), mlp)

    table = parts.tensors.weight("embedding", parts.sizes.vocab_size, parts.sizes.hidden_size)
    final_norm = parts.norm(parts.tensors, "final_norm", parts.sizes.hidden_size)
    head = Head(parts.head(config.flag("tie_word_embeddings")), scale=1 / logits)
    first = Embedding(table, scale=embedding / residual)
    return Decoder(parts.sizes, first, parts.layers(layer), final_norm, head, stream_scale=residual)


def _factor(config: ConfigFields, key: str) -> float:
    factor = config.number(key, 1.0)
    if 1e-6 <= factor <= 1e6:  # so that float32 holds their quotients and squares
        return factor
    config.problem(key, f"expected a factor from 1e-6 to 1e6, found {factor}")
    return 1.0


FAMILY = Family(
    name="granite",
    architectures=("GraniteForCausalLM",),
    read_model=read_model,
    gguf=Gguf(
        "granite",
        keys={
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
        },
        interleaved_rope=True,
        optional_bias=True,
    ),
)
