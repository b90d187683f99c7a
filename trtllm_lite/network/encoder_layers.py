"""Builds the layers of encoders: attention in both directions, and how attention and MLP read and add to the residual
stream."""

from dataclasses import dataclass

import onnx_ir as ir

from trtllm_lite.network.attention import Heads, merge_heads, rotate_heads, split_heads
from trtllm_lite.network.encoder_context import EncoderContext
from trtllm_lite.network.linear import Linear
from trtllm_lite.network.mlp import GatedMlp, PlainMlp
from trtllm_lite.network.norms import Norm
from trtllm_lite.network.rope import Rope
from trtllm_lite.network.weight_expression import WeightExpression


@dataclass(frozen=True)
class EncoderAttention:
    """Multi-head attention in both directions: output(softmax(query . key / sqrt(head_dim) + bias) value).

    ``rope`` rotates queries and keys. With a ``window`` queries see keys up to ``window`` tokens before and after them,
    else all keys. ``distance_bias`` [heads, 2 * D + 1] is added by the distance of query and key (see
    :meth:`EncoderContext.distance_bias`); there is a window or a bias, not both. Of the elements of heads that are
    padded with zeros, ``used`` count for the scale.
    """

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    heads: Heads
    rope: Rope | None = None
    window: int = 0
    distance_bias: WeightExpression | None = None
    used: int | None = None

    def __call__(self, context: EncoderContext, x: ir.Value) -> ir.Value:
        """Map activations [batch, seq, hidden] to the same shape."""
        graph, heads = context.graph, self.heads
        query, key, value = (
            split_heads(graph, linear(graph, x, f"{role}_proj"), heads.num_heads, heads.head_dim, role)
            for role, linear in (("q", self.query), ("k", self.key), ("v", self.value))
        )
        if self.rope is not None:
            query = rotate_heads(context, query, self.rope, heads.head_dim, "q_rope")
            key = rotate_heads(context, key, self.rope, heads.head_dim, "k_rope")
        attributes = {"is_causal": 0, "scale": (self.used or heads.head_dim) ** -0.5}
        inputs = [query, key, value, self._mask(context), None, None, context.seq_lens]
        return self.output(graph, merge_heads(graph, graph.op("Attention", inputs, "attention", attributes)), "o_proj")

    def _mask(self, context: EncoderContext) -> ir.Value | None:
        if self.distance_bias is not None:
            return context.distance_bias(self.distance_bias)
        return context.window_mask(self.window) if self.window else None


@dataclass(frozen=True)
class PostNormLayer:
    """Attention and then the MLP, each added to its input, followed by a norm (arXiv 1706.03762, section 3.1)."""

    attention: EncoderAttention
    attention_norm: Norm
    mlp: PlainMlp
    mlp_norm: Norm

    def __call__(self, context: EncoderContext, hidden: ir.Value) -> ir.Value:
        """Map activations [batch, seq, hidden] to the same shape."""
        graph = context.graph
        with graph.scope("attention"):
            mixed = self.attention(context, hidden)
        hidden = self.attention_norm(graph, graph.op("Add", [hidden, mixed], "attention_residual"), "attention_norm")
        with graph.scope("mlp"):
            mlp_output = self.mlp(context, hidden)
        return self.mlp_norm(graph, graph.op("Add", [hidden, mlp_output], "mlp_residual"), "mlp_norm")


@dataclass(frozen=True)
class PreNormLayer:
    """Attention and then the MLP, each after a norm; the first layer may lack the first norm."""

    attention: EncoderAttention
    attention_norm: Norm | None
    mlp: GatedMlp | PlainMlp
    mlp_norm: Norm

    def __call__(self, context: EncoderContext, hidden: ir.Value) -> ir.Value:
        """Map activations [batch, seq, hidden] to the same shape."""
        graph = context.graph
        x = hidden if self.attention_norm is None else self.attention_norm(graph, hidden, "attention_norm")
        with graph.scope("attention"):
            mixed = self.attention(context, x)
        hidden = graph.op("Add", [hidden, mixed], "attention_residual")
        x = self.mlp_norm(graph, hidden, "mlp_norm")
        with graph.scope("mlp"):
            mlp_output = self.mlp(context, x)
        return graph.op("Add", [hidden, mlp_output], "mlp_residual")
