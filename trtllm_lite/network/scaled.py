"""Builds products and gates whose results are multiplied by constant factors (arXiv 2203.03466), which keeps weights as
they are stored.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trtllm_lite.network.context import NetworkContext
from trtllm_lite.network.graph import GraphBuilder
from trtllm_lite.network.linear import Linear


@dataclass(frozen=True)
class ScaledLinear:
    """linear(x) whose successive parts, each of so many features, are multiplied by a factor each."""

    linear: Linear
    factors: tuple[float, ...]
    features: tuple[int, ...]

    def __call__(self, graph: GraphBuilder, x: ir.Value, name: str) -> ir.Value:
        """Map float32 [..., in_features] to [..., out_features]."""
        product = self.linear(graph, x, name)
        if set(self.factors) == {1.0}:
            return product
        factors = graph.floats(f"{name}.factors", np.repeat(self.factors, self.features))
        return graph.op("Mul", [product, factors], f"{name}.scaled")


@dataclass(frozen=True)
class ScaledSilu:
    """factor * up * silu(gate_factor * gate)."""

    gate_factor: float
    factor: float

    def gated(self, context: NetworkContext, gate: ir.Value, up: ir.Value) -> ir.Value:
        """The function of ``gate`` and ``up``."""
        graph = context.graph
        if self.gate_factor != 1:
            gate = graph.op("Mul", [gate, graph.scalar("gate_factor", self.gate_factor)], "gate.scaled")
        gated = graph.op("Mul", [graph.op("Swish", [gate], "swish"), up], "gated")
        if self.factor == 1:
            return gated
        return graph.op("Mul", [gated, graph.scalar("factor", self.factor)], "gated.scaled")
