"""Builds linear layers."""

from dataclasses import dataclass

import onnx_ir as ir

from trtllm_lite.network.graph import GraphBuilder
from trtllm_lite.network.norms import Norm
from trtllm_lite.network.weight_expression import WeightExpression


@dataclass(frozen=True)
class Linear:
    """x @ weight.T (+ bias): ``weight`` is [out_features, in_features], ``bias`` [out_features]."""

    weight: WeightExpression
    bias: WeightExpression | None = None

    def __call__(self, graph: GraphBuilder, x: ir.Value, name: str) -> ir.Value:
        """Map float32 [..., in_features] to [..., out_features]."""
        graph.of_module(self.weight, name)
        transposed = graph.op("Transpose", [graph.matrix(self.weight, name)], f"{name}.transpose", {"perm": [1, 0]})
        product = graph.op("MatMul", [graph.input_of(self.weight, x, name), transposed], name)
        if self.bias is None:
            return product
        return graph.op("Add", [product, graph.vector(self.bias, f"{name}.bias")], f"{name}.bias")

    def split(self, *extents: int) -> tuple["Linear", ...]:
        """Layers that compute consecutive features, ``extents`` of them each."""
        biases = [None] * len(extents) if self.bias is None else self.bias.split(*extents)
        return tuple(Linear(*parts) for parts in zip(self.weight.split(*extents), biases, strict=True))

    def split_heads(self, heads: int, *extents: int) -> tuple["Linear", ...]:
        """Layers that compute ``extents`` features of each of ``heads``, such as a gate that is fused with queries."""
        weights = self.weight.split_heads(heads, *extents)
        biases = [None] * len(extents) if self.bias is None else self.bias.split_heads(heads, *extents)
        return tuple(Linear(weight, bias) for weight, bias in zip(weights, biases, strict=True))


@dataclass(frozen=True)
class LowRankLinear:
    """up(norm(down(x))), or up(down(x)) without a norm."""

    down: Linear
    norm: Norm | None
    up: Linear

    def __call__(self, graph: GraphBuilder, x: ir.Value, name: str) -> ir.Value:
        """Map float32 [..., in_features] to [..., out_features]."""
        narrow = self.down(graph, x, f"{name}.down")
        return self.up(graph, narrow if self.norm is None else self.norm(graph, narrow, f"{name}.norm"), name)
