"""Builds heads that draft from a model's features (EAGLE-3, arXiv 2503.01840), and the features in the model.

The published head takes, at position i, the model's features of token i and the embedding of token i + 1, and predicts
the token after that. Here both have the position of the later token: at position p a head reads token p and the
features of the token before it, so that its state depends only on the text up to p, like keys and values. Rotary
embeddings depend on distances, which are the same. Position 0 has a token and no features, and no position attends to
it.
"""

from dataclasses import dataclass
from typing import Protocol

import onnx_ir as ir

from trtllm_lite.network.attention import Attention
from trtllm_lite.network.context import DecoderContext
from trtllm_lite.network.layers import Residual
from trtllm_lite.network.linear import Linear
from trtllm_lite.network.norms import Norm
from trtllm_lite.network.weight_expression import Concat

FIRST_POSITION = 1  # the first position with features


class MakesFeatures(Protocol):
    """Computes the features of each token."""

    def __call__(self, context: DecoderContext, streams: list[ir.Value], normed: ir.Value) -> ir.Value:
        """float32 [batch, seq, hidden], from the residual streams before each layer, or after the final norm."""


@dataclass(frozen=True)
class Features:
    """Computes the features of each token: the sum over ``layers`` of linear(the residual stream before that layer).

    ``layers`` are indices of layers; ``linears[i]`` has the columns of the head's ``fc`` for ``layers[i]``.
    """

    layers: tuple[int, ...]
    linears: tuple[Linear, ...]

    def __call__(self, context: DecoderContext, streams: list[ir.Value], normed: ir.Value) -> ir.Value:
        """Implements :meth:`MakesFeatures.__call__`."""
        del normed
        graph = context.graph
        with graph.scope("features"):
            parts = [
                linear(graph, streams[layer], f"fc_{layer}")
                for layer, linear in zip(self.layers, self.linears, strict=True)
            ]
            total = parts[0]
            for number, part in enumerate(parts[1:], 1):
                total = graph.op("Add", [total, part], f"sum_{number}")
        return total


@dataclass(frozen=True)
class FeatureLayer:
    """A drafting head's layer: attention over embeddings and features, then an MLP; its residual stream is features.

    The projections of ``attention`` are [out, 2 * hidden]: the first columns are for normalised embeddings, the others
    for normalised features. With ``norm_before_residual`` the residual stream begins with the normalised features.
    """

    embedding_norm: Norm
    feature_norm: Norm
    attention: Attention
    mlp: Residual
    norm_before_residual: bool = False

    def __call__(self, context: DecoderContext, hidden: ir.Value) -> ir.Value:
        """The residual stream after the layer; ``hidden`` are embeddings."""
        graph, features = context.graph, context.features
        assert features is not None
        embedded = self.embedding_norm(graph, hidden, "embedding_norm")
        normed = self.feature_norm(graph, features, "feature_norm")
        with graph.scope("attention"):
            mixed = self._attend(context, embedded, normed)
        stream = normed if self.norm_before_residual else features
        return self.mlp(context, graph.op("Add", [stream, mixed], "attention_residual"), "mlp")

    def _attend(self, context: DecoderContext, embedded: ir.Value, normed: ir.Value) -> ir.Value:
        graph, own = context.graph, self.attention
        weights = [linear.weight for linear in (own.query, own.key, own.value) if linear is not None]
        wide = weights[0].shape[1]
        of_embedding, of_feature = (
            Linear(Concat(tuple(weight.slice(start, start + wide // 2, axis=1) for weight in weights)))
            for start in (0, wide // 2)
        )
        parts = [of_embedding(graph, embedded, "qkv_of_embedding"), of_feature(graph, normed, "qkv_of_feature")]
        qkv = graph.op("Add", parts, "qkv")
        return own.mix(context, *graph.split(qkv, [weight.shape[0] for weight in weights], "qkv_split"))
