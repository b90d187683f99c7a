"""Builds Dynamic Tanh, in standard ONNX operators."""

from dataclasses import dataclass

import onnx_ir as ir

from trtllm_lite.network.graph import GraphBuilder
from trtllm_lite.network.weight_expression import WeightExpression


@dataclass(frozen=True)
class DynamicTanh:
    """tanh(alpha * x) * weight + bias (arXiv 2503.10622), where alpha is one number."""

    alpha: WeightExpression
    weight: WeightExpression
    bias: WeightExpression

    def __call__(self, graph: GraphBuilder, x: ir.Value, name: str) -> ir.Value:
        """Apply it to rows ``x``; implements :class:`trtllm_lite.network.norms.Norm`."""
        scaled = graph.op("Mul", [x, graph.vector(self.alpha, f"{name}.alpha")], f"{name}.scaled")
        squashed = graph.op("Tanh", [scaled], f"{name}.tanh")
        weighted = graph.op("Mul", [squashed, graph.vector(self.weight, f"{name}.weight")], f"{name}.weighted")
        return graph.op("Add", [weighted, graph.vector(self.bias, f"{name}.bias")], name)
