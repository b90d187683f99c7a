"""Makes the blocks that most decoder families share, from the keys and tensor names that most of them use.

A family takes the blocks that fit and makes the others itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.fields.decoder import read_activation, read_sizes
from trtllm_lite.convert.fields.rope import read_rope
from trtllm_lite.convert.fields.rope_types import USUAL_ROPE, RopeDefaults
from trtllm_lite.convert.sources.source_tensors import TENSOR_NAMES, Tensors
from trtllm_lite.network.attention import Attention
from trtllm_lite.network.decoder import Decoder, Sizes
from trtllm_lite.network.ends import Embedding, Head
from trtllm_lite.network.layers import Block, Layer, Residual, SequentialLayer
from trtllm_lite.network.linear import Linear
from trtllm_lite.network.mlp import Activation, Function, GatedMlp, PlainMlp
from trtllm_lite.network.norms import LayerNorm, Norm, RmsNorm
from trtllm_lite.network.rope import Rope
from trtllm_lite.network.weight_expression import HalvesFromPairs

MakeNorm = Callable[[Tensors, str, int], Norm]


def rms_norm(config: ConfigFields, epsilon: float = 1e-6, stream_scale: float = 1.0) -> MakeNorm:
    """A function that makes RMSNorms with the config's ``rms_norm_eps``; ``epsilon`` is the family's default.

    The input x of norms is divided by ``stream_scale`` s; (x/s) / sqrt(mean((x/s)^2) + epsilon/s^2) cancels that.
    """
    epsilon = config.number("rms_norm_eps", epsilon) / stream_scale**2
    return lambda tensors, role, size: RmsNorm(tensors.weight(role, size), epsilon)


def one_plus_rms_norm(config: ConfigFields) -> MakeNorm:
    """Like :func:`rms_norm`, for models that store w and multiply by 1 + w."""
    epsilon = config.number("rms_norm_eps", 1e-6)
    return lambda tensors, role, size: RmsNorm(tensors.weight(role, size).affine(offset=1.0), epsilon)


def layer_norm(epsilon: float, bias: bool = True) -> MakeNorm:
    """A function that makes LayerNorms."""
    return lambda tensors, role, size: LayerNorm(
        tensors.weight(role, size), tensors.bias(role, size) if bias else None, epsilon
    )


class Projections(NamedTuple):
    """The linear layers of attention."""

    query: Linear
    key: Linear
    value: Linear
    output: Linear

    def rotating_halves(self, sizes: Sizes, rope: Rope) -> "Projections":
        """Reorder rows of queries and keys for rotate-half RoPE, if the model's RoPE rotates neighbouring elements."""

        def reordered(linear: Linear, heads: int) -> Linear:
            dim = 2 * len(rope.inv_freq)
            bias = None if linear.bias is None else HalvesFromPairs(linear.bias, heads, dim)
            return Linear(HalvesFromPairs(linear.weight, heads, dim), bias)

        return self._replace(
            query=reordered(self.query, sizes.num_attention_heads), key=reordered(self.key, sizes.num_key_value_heads)
        )


@dataclass(frozen=True)
class UsualParts:
    """Makes blocks; each method's ``tensors`` are those of one layer."""

    sizes: Sizes
    tensors: Tensors
    norm: MakeNorm

    def layers(self, layer: Callable[[Tensors, int], Layer]) -> tuple[Layer, ...]:
        """All layers: ``layer`` called with the tensors and the number of each."""
        return tuple(layer(self.tensors.of_layer(number), number) for number in range(self.sizes.num_hidden_layers))

    def projections(self, tensors: Tensors, qkv_bias: bool = False, output_bias: bool = False) -> Projections:
        """The four linear layers of attention, each a tensor of its own."""
        sizes = self.sizes
        hidden, queries = sizes.hidden_size, sizes.num_attention_heads * sizes.head_dim
        keys = sizes.num_key_value_heads * sizes.head_dim
        return Projections(
            tensors.linear("q_proj", queries, hidden, qkv_bias),
            tensors.linear("k_proj", keys, hidden, qkv_bias),
            tensors.linear("v_proj", keys, hidden, qkv_bias),
            tensors.linear("o_proj", hidden, queries, output_bias),
        )

    def head_norm(self, tensors: Tensors, role: str) -> Norm:
        """The norm of every query head or key head (``role`` q_norm or k_norm) before RoPE."""
        return self.norm(tensors, role, self.sizes.head_dim)

    def gated_mlp(self, tensors: Tensors, activation: Activation, bias: bool = False) -> GatedMlp:
        """A gated MLP of three linear layers (gate, up, down), each a tensor of its own."""
        hidden, wide = self.sizes.hidden_size, self.sizes.intermediate_size
        gate, up = (tensors.linear(role, wide, hidden, bias) for role in ("gate_proj", "up_proj"))
        return GatedMlp(gate, up, tensors.linear("down_proj", hidden, wide, bias), activation)

    def plain_mlp(self, tensors: Tensors, activation: Function, bias: bool = False) -> PlainMlp:
        """An MLP without a gate, of two linear layers (up, down)."""
        hidden, wide = self.sizes.hidden_size, self.sizes.intermediate_size
        up = tensors.linear("up_proj", wide, hidden, bias)
        return PlainMlp(up, tensors.linear("down_proj", hidden, wide, bias), activation)

    def gate_up_mlp(self, tensors: Tensors, activation: Activation) -> GatedMlp:
        """A gated MLP whose gate and up are one tensor, the rows of the gate first."""
        hidden, wide = self.sizes.hidden_size, self.sizes.intermediate_size
        gate, up = tensors.weight("gate_up_proj", 2 * wide, hidden).split(wide, wide)
        return GatedMlp(Linear(gate), Linear(up), tensors.linear("down_proj", hidden, wide), activation)

    def pre_norm_layer(self, tensors: Tensors, attention: Block, mlp: Block) -> SequentialLayer:
        """A layer with a norm before attention and a norm before the MLP."""
        hidden = self.sizes.hidden_size
        return SequentialLayer(
            Residual(self.norm(tensors, "attention_norm", hidden), attention),
            Residual(self.norm(tensors, "mlp_norm", hidden), mlp),
        )

    def post_norm_layer(self, tensors: Tensors, attention: Block, mlp: Block) -> SequentialLayer:
        """A layer with a norm after attention and a norm after the MLP, before their results are added."""
        hidden = self.sizes.hidden_size
        return SequentialLayer(
            Residual(None, attention, self.norm(tensors, "attention_post_norm", hidden)),
            Residual(None, mlp, self.norm(tensors, "mlp_post_norm", hidden)),
        )

    def sandwich_norm_layer(self, tensors: Tensors, attention: Block, mlp: Block) -> SequentialLayer:
        """A layer with a norm before and a norm after each block (arXiv 2105.13290, section 2.4)."""

        def residual(name: str, block: Block) -> Residual:
            before, behind = (self.norm(tensors, f"{name}_{n}", self.sizes.hidden_size) for n in ("norm", "post_norm"))
            return Residual(before, block, behind)

        return SequentialLayer(residual("attention", attention), residual("mlp", mlp))

    def head(self, tied: bool) -> Linear:
        """The linear layer of the LM head: the embedding's matrix if ``tied``."""
        role = "embedding" if tied else "lm_head"
        return self.tensors.linear(role, self.sizes.vocab_size, self.sizes.hidden_size)

    def decoder(self, config: ConfigFields, layers: tuple[Layer, ...], tied: bool = False) -> Decoder:
        """A decoder of ``layers`` between embedding and head, which share a matrix if ``tie_word_embeddings``.

        ``tied`` is the family's default for that key.
        """
        embedding = Embedding(self.tensors.weight("embedding", self.sizes.vocab_size, self.sizes.hidden_size))
        final_norm = self.norm(self.tensors, "final_norm", self.sizes.hidden_size)
        head = Head(self.head(config.flag("tie_word_embeddings", tied)))
        return Decoder(self.sizes, embedding, layers, final_norm, head)


@dataclass(frozen=True)
class LlamaParts(UsualParts):
    """Makes the parts of Llama and similar models: RMSNorm, RoPE, gated MLP, a norm before each block."""

    rope: Rope
    activation: Activation

    @classmethod
    def read(
        cls,
        config: ConfigFields,
        names: Mapping[str, str] = TENSOR_NAMES,
        head_dim: int | None = None,
        epsilon: float = 1e-6,
        rope: RopeDefaults = USUAL_ROPE,
        stream_scale: float = 1.0,
    ) -> "LlamaParts":
        """Read the keys that these models share; the arguments are the family's defaults.

        Without a default, ``head_dim`` is hidden size / heads. In the network, the residual stream is divided by
        ``stream_scale``.
        """
        sizes = read_sizes(config, head_dim)
        rotation = read_rope(config, sizes.head_dim, sizes.max_position_embeddings, rope)
        return cls(sizes, Tensors(names), rms_norm(config, epsilon, stream_scale), rotation, read_activation(config))

    def mlp_of(self, tensors: Tensors, prefix: str, wide: int) -> GatedMlp:
        """A gated MLP of ``wide`` inner features; its roles are ``prefix`` followed by those of gate, up and down."""
        hidden = self.sizes.hidden_size
        gate, up = (tensors.linear(f"{prefix}{name}_proj", wide, hidden) for name in ("gate", "up"))
        return GatedMlp(gate, up, tensors.linear(f"{prefix}down_proj", hidden, wide), self.activation)

    def attention(
        self,
        projections: Projections,
        window: int = 0,
        query_norm: Norm | None = None,
        key_norm: Norm | None = None,
    ) -> Attention:
        """Attention with RoPE over a window in tokens; 0 means all tokens."""
        heads, rope = self.sizes.heads, self.rope
        return Attention(*projections, heads, rope=rope, window=window, query_norm=query_norm, key_norm=key_norm)

    def attention_normed_over_heads(self, tensors: Tensors, bias: bool = False) -> Attention:
        """Attention with RoPE, and before it a norm over all query heads together, and one over all key heads.

        With ``bias`` all four projections have biases.
        """
        heads = self.sizes.heads
        query_norm = self.norm(tensors, "q_norm", heads.num_heads * heads.head_dim)
        key_norm = self.norm(tensors, "k_norm", heads.num_kv_heads * heads.head_dim)
        attention = self.attention(self.projections(tensors, bias, bias), 0, query_norm, key_norm)
        return replace(attention, norms_all_heads=True)
