"""Builds norms over the last axis of float32 activations."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnx_ir as ir

from trtllm_lite.network.graph import GraphBuilder
from trtllm_lite.network.weight_expression import WeightExpression


class Norm(Protocol):
    """Normalises ``x`` over its last axis in a node called ``name``."""

    def __call__(self, graph: GraphBuilder, x: ir.Value, name: str) -> ir.Value:
        """The normalised activations, in the shape of ``x``."""


@dataclass(frozen=True)
class RmsNorm:
    """x / sqrt(mean(x^2) + epsilon) * weight (arXiv 1910.07467).

    For models that multiply by 1 + w, ``weight`` is 1 + w, computed once when the weights are written.
    """

    weight: WeightExpression
    epsilon: float

    def __call__(self, graph: GraphBuilder, x: ir.Value, name: str) -> ir.Value:
        scale = graph.vector(self.weight, f"{name}.weight")
        return graph.op("RMSNormalization", [x, scale], name, {"axis": -1, "epsilon": self.epsilon})


@dataclass(frozen=True)
class HeadLayerNorm:
    """LayerNorm of each head, without biases: ``weight`` [heads, head_dim] has each head's own weight."""

    weight: WeightExpression
    epsilon: float

    def __call__(self, graph: GraphBuilder, x: ir.Value, name: str) -> ir.Value:
        """Normalise ``x`` [batch, seq, heads, head_dim]."""
        head_dim = self.weight.shape[1]
        ones = graph.constant(f"ones_{head_dim}", np.ones(head_dim, np.float32))
        normed = graph.op("LayerNormalization", [x, ones], f"{name}.plain", {"axis": -1, "epsilon": self.epsilon})
        return graph.op("Mul", [normed, graph.vector(self.weight, f"{name}.weight")], name)


@dataclass(frozen=True)
class LayerNorm:
    """(x - mean(x)) / sqrt(var(x) + epsilon) * weight (+ bias) (arXiv 1607.06450)."""

    weight: WeightExpression
    bias: WeightExpression | None
    epsilon: float

    def __call__(self, graph: GraphBuilder, x: ir.Value, name: str) -> ir.Value:
        inputs = [x, graph.vector(self.weight, f"{name}.weight")]
        if self.bias is not None:
            inputs.append(graph.vector(self.bias, f"{name}.bias"))
        return graph.op("LayerNormalization", inputs, name, {"axis": -1, "epsilon": self.epsilon})
