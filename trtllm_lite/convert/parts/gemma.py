"""Makes the parts that Gemma 2 and 3 share (arXiv 2408.00118, 2503.19786; https://github.com/google/gemma_pytorch).

Norms multiply by 1 + w and come before and after each block; embeddings are multiplied by sqrt(hidden_size); scores are
divided by sqrt(query_pre_attn_scalar) instead of sqrt(head_dim).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_activation, read_layer_types, read_sizes
from trtllm_lite.convert.fields.rope import read_rope
from trtllm_lite.convert.parts.usual import UsualParts, one_plus_rms_norm
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder
from trtllm_lite.network.ends import Embedding, Head
from trtllm_lite.network.layers import Block, Layer, SequentialLayer
from trtllm_lite.network.mlp import Activation

NAMES = {
    **TENSOR_NAMES,
    "attention_post_norm": "model.layers.{layer}.post_attention_layernorm",
    "mlp_norm": "model.layers.{layer}.pre_feedforward_layernorm",
    "mlp_post_norm": "model.layers.{layer}.post_feedforward_layernorm",
}
GGUF_ROLES = {
    "blk.{layer}.post_attention_norm": "attention_post_norm",
    "blk.{layer}.post_ffw_norm": "mlp_post_norm",
}
GGUF_KEYS = {
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}


def gguf_score_size(config: dict[str, Any], largest: int) -> dict[str, Any]:
    """Return query_pre_attn_scalar, which GGUF files lack.

    llama.cpp derives it from the number of layers: in the ``largest`` model of each generation, of 27 billion
    parameters, it is hidden_size / num_attention_heads, in every other model head_dim.
    """
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if config.get("num_hidden_layers") == largest and isinstance(hidden, int) and isinstance(heads, int) and heads:
        return {"query_pre_attn_scalar": hidden // heads}
    return {"query_pre_attn_scalar": config.get("head_dim")}


@dataclass(frozen=True)
class GemmaParts(UsualParts):
    """The parts; ``scale`` is the factor of scores, ``bias`` says whether attention's four projections have biases."""

    activation: Activation
    scale: float
    bias: bool

    @classmethod
    def read(cls, config: ConfigFields) -> "GemmaParts":
        """Read the keys that both generations share."""
        config.take("hidden_act")  # a key of older configs, which the models ignore in favour of hidden_activation
        config.expect("use_bidirectional_attention", False)
        return cls(
            read_sizes(config, head_dim=256),
            Tensors(NAMES),
            one_plus_rms_norm(config),
            read_activation(config, "hidden_activation", "gelu_pytorch_tanh"),
            config.number("query_pre_attn_scalar", 256.0) ** -0.5,
            config.flag("attention_bias"),
        )

    def layer(self, tensors: Tensors, attention: Block) -> SequentialLayer:
        """A layer with a norm before and a norm after each block."""
        return self.sandwich_norm_layer(tensors, attention, self.gated_mlp(tensors, self.activation))

    def capped_decoder(self, config: ConfigFields, layers: tuple[Layer, ...], softcap: float | None) -> Decoder:
        """A decoder of ``layers`` between embedding and head, which share a matrix unless the config says otherwise.

        ``softcap`` is the family's default for ``final_logit_softcapping``.
        """
        hidden = self.sizes.hidden_size
        table = self.tensors.weight("embedding", self.sizes.vocab_size, hidden)
        final_norm = self.norm(self.tensors, "final_norm", hidden)
        cap = config.nullable_number("final_logit_softcapping", softcap) or 0.0
        head = Head(self.head(config.flag("tie_word_embeddings", True)), softcap=cap)
        embedding = Embedding(table, scale=hidden**0.5, rounds_scale=True)
        return Decoder(self.sizes, embedding, layers, final_norm, head)


def capped_attention(config: ConfigFields, parts: GemmaParts) -> Callable[[Tensors, int], Attention]:
    """A function that makes the attention of layers, whose scores are soft-capped; a null cap caps nothing.

    The first layer has a window, and every other after it, unless ``layer_types`` says otherwise.
    """
    sizes = parts.sizes
    rope = read_rope(config, sizes.head_dim, sizes.max_position_embeddings)
    slides = read_layer_types(config, [number % 2 == 0 for number in range(sizes.num_hidden_layers)])
    window = config.nullable_integer("sliding_window", 4096) or 0
    softcap = config.nullable_number("attn_logit_softcapping", 50.0) or 0.0

    def attention(tensors: Tensors, number: int) -> Attention:
        return Attention(
            *parts.projections(tensors, parts.bias, parts.bias),
            sizes.heads,
            scale=parts.scale,
            rope=rope,
            window=window if slides[number] else 0,
            softcap=softcap,
        )

    return attention
