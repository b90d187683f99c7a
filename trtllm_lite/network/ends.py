"""Builds the two ends of a decoder: from token ids to activations, and from activations to logits."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trtllm_lite.network.context import DecoderContext, NetworkContext
from trtllm_lite.network.linear import Linear
from trtllm_lite.network.weight_expression import WeightExpression


@dataclass(frozen=True)
class Embedding:
    """table[ids] * scale + positions[position ids].

    ``table`` is [vocab, hidden]; ``positions`` is [max_positions, hidden], or None for models without learned
    positions. With ``rounds_scale`` the scale is rounded to the storage type of matrices, for models that were trained
    in this way.
    """

    table: WeightExpression
    scale: float = 1.0
    positions: WeightExpression | None = None
    rounds_scale: bool = False

    def __call__(self, context: NetworkContext) -> ir.Value:
        """float32 [batch, seq, hidden]."""
        graph = context.graph
        hidden = graph.rows(self.table, context.input_ids, "embedding")
        if self.scale != 1:
            rounded = float(np.array(self.scale).astype(graph.dtype.numpy()))
            scale = rounded if self.rounds_scale else self.scale
            hidden = graph.op("Mul", [hidden, graph.scalar("embedding.scale", scale)], "embedding.scaled")
        if self.positions is None:
            return hidden
        positions = graph.rows(self.positions, context.position_ids, "positions")
        return graph.op("Add", [hidden, positions], "embedding.positioned")


@dataclass(frozen=True)
class Head:
    """Logits: scale * linear(x), bounded to softcap * tanh(logit / softcap) unless ``softcap`` is 0."""

    linear: Linear
    scale: float = 1.0
    softcap: float = 0.0

    def __call__(self, context: DecoderContext, x: ir.Value) -> ir.Value:
        """float32 [batch, seq, vocab]."""
        graph = context.graph
        logits = self.linear(graph, x, "lm_head")
        if self.scale != 1:
            logits = graph.op("Mul", [logits, graph.scalar("lm_head.scale", self.scale)], "lm_head.scaled")
        if self.softcap:
            cap = graph.scalar("lm_head.softcap", self.softcap)
            share = graph.op("Div", [logits, cap], "lm_head.softcap.divided")
            logits = graph.op("Mul", [graph.op("Tanh", [share], "lm_head.softcap.tanh"), cap], "lm_head.capped")
        return logits
