"""Builds a layer of a model that predicts a further token (multi-token prediction, arXiv 2412.19437).

Like the heads of :mod:`trtllm_lite.network.drafting` it reads, at position p, token p and the features of the token
before, from the model or from the layer itself: here the state after the final norm.
"""

from dataclasses import dataclass

import onnx_ir as ir

from trtllm_lite.network.context import DecoderContext
from trtllm_lite.network.layers import Layer
from trtllm_lite.network.linear import Linear
from trtllm_lite.network.norms import Norm


@dataclass(frozen=True)
class LastState:
    """Computes the features of each token: its state after the final norm."""

    def __call__(self, context: DecoderContext, streams: list[ir.Value], normed: ir.Value) -> ir.Value:
        """float32 [batch, seq, hidden]."""
        del context, streams
        return normed


@dataclass(frozen=True)
class PredictingLayer:
    """layer(of_embedding(norm(embedding)) + of_state(norm(state of the token before))).

    The two projections, [hidden, hidden] each, are the halves of the published layer's projection of both.
    """

    embedding_norm: Norm
    state_norm: Norm
    of_embedding: Linear
    of_state: Linear
    layer: Layer

    def __call__(self, context: DecoderContext, hidden: ir.Value) -> ir.Value:
        """The residual stream after the layer; ``hidden`` are embeddings."""
        graph, states = context.graph, context.features
        assert states is not None
        parts = [
            self.of_state(graph, self.state_norm(graph, states, "state_norm"), "projection_of_state"),
            self.of_embedding(graph, self.embedding_norm(graph, hidden, "embedding_norm"), "projection_of_embedding"),
        ]
        return self.layer(context, graph.op("Add", parts, "projection"))
