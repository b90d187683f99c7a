"""Builds the feed-forward blocks of decoder layers and their activation functions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import onnx_ir as ir

from trtllm_lite.network.context import NetworkContext
from trtllm_lite.network.graph import Attribute
from trtllm_lite.network.linear import Linear

SWIGLU_ALPHA, SWIGLU_LIMIT = 1.702, 7.0
_SWIGLU_BOUNDS = {"low": -SWIGLU_LIMIT, "high": SWIGLU_LIMIT}


class Gating(Protocol):
    """Combines the gate and the up projection of a gated MLP."""

    def gated(self, context: NetworkContext, gate: ir.Value, up: ir.Value) -> ir.Value:
        """Map two values of one shape to one."""


@dataclass(frozen=True)
class Activation:
    """An elementwise function: one node of the standard operator ``op_type``, called ``name``."""

    op_type: str
    name: str
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    def __call__(self, context: NetworkContext, x: ir.Value) -> ir.Value:
        """Apply the function to every element."""
        return context.graph.op(self.op_type, [x], self.name, self.attributes)

    def gated(self, context: NetworkContext, gate: ir.Value, up: ir.Value) -> ir.Value:
        """function(gate) * up."""
        return context.graph.op("Mul", [self(context, gate), up], "gated")


@dataclass(frozen=True)
class SwigluOai:
    """g * sigmoid(1.702 g) * (u + 1) of the gate g = min(gate, 7) and u = up between -7 and 7 (arXiv 2508.10925)."""

    def gated(self, context: NetworkContext, gate: ir.Value, up: ir.Value) -> ir.Value:
        """The function of ``gate`` and ``up``."""
        graph = context.graph
        low, high = (graph.constant(f"swiglu.{name}", np.array(x, np.float32)) for name, x in _SWIGLU_BOUNDS.items())
        one = graph.constant("swiglu.one", np.array(1, np.float32))
        bounded_gate = graph.op("Clip", [gate, None, high], "gate.bounded")
        swish = graph.op("Swish", [bounded_gate], "swish", {"alpha": SWIGLU_ALPHA})
        bounded_up = graph.op("Clip", [up, low, high], "up.bounded")
        return graph.op("Mul", [swish, graph.op("Add", [bounded_up, one], "up.plus_one")], "gated")


SIGMOID = Activation("Sigmoid", "sigmoid")  # of gates
RELU = Activation("Relu", "relu")
# The keys are transformers' names (ACT2FN), in which gelu_new, gelu_fast and gelu_pytorch_tanh are one approximation.
ACTIVATIONS: Mapping[str, Activation] = {
    "silu": Activation("Swish", "swish"),
    "swish": Activation("Swish", "swish"),
    "gelu": Activation("Gelu", "gelu", {"approximate": "none"}),
    "gelu_new": Activation("Gelu", "gelu", {"approximate": "tanh"}),
    "gelu_fast": Activation("Gelu", "gelu", {"approximate": "tanh"}),
    "gelu_pytorch_tanh": Activation("Gelu", "gelu", {"approximate": "tanh"}),
}


@dataclass(frozen=True)
class SquaredRelu:
    """max(x, 0)^2 (arXiv 2109.08668), which is max(x, 0) * x."""

    def __call__(self, context: NetworkContext, x: ir.Value) -> ir.Value:
        """Apply the function to every element."""
        return context.graph.op("Mul", [context.graph.op("Relu", [x], "relu"), x], "relu.squared")


@dataclass(frozen=True)
class QuickGelu:
    """x * sigmoid(1.702 x) (arXiv 1606.08415, section 2); nodes have one reader each, so that all become one kernel."""

    def __call__(self, context: NetworkContext, x: ir.Value) -> ir.Value:
        """Apply the function to every element."""
        graph = context.graph
        factor = graph.constant("quick_gelu.factor", np.array(SWIGLU_ALPHA, np.float32))
        gate = graph.op("Sigmoid", [graph.op("Mul", [x, factor], "quick_gelu.scaled")], "quick_gelu.gate")
        return graph.op("Mul", [x, gate], "quick_gelu")


class Function(Protocol):
    """An elementwise function of activations."""

    def __call__(self, context: NetworkContext, x: ir.Value) -> ir.Value:
        """Apply the function to every element."""


@dataclass(frozen=True)
class GatedMlp:
    """down(activation(gate(x)) * up(x)) (arXiv 2002.05202)."""

    gate: Linear
    up: Linear
    down: Linear
    activation: Gating

    def __call__(self, context: NetworkContext, x: ir.Value) -> ir.Value:
        """Map activations [batch, seq, hidden] to the same shape."""
        graph = context.graph
        gate, up = self.gate(graph, x, "gate_proj"), self.up(graph, x, "up_proj")
        return self.down(graph, self.activation.gated(context, gate, up), "down_proj")


@dataclass(frozen=True)
class PlainMlp:
    """down(activation(up(x))) (arXiv 1706.03762, section 3.3)."""

    up: Linear
    down: Linear
    activation: Function

    def __call__(self, context: NetworkContext, x: ir.Value) -> ir.Value:
        """Map activations [batch, seq, hidden] to the same shape."""
        up = self.up(context.graph, x, "up_proj")
        return self.down(context.graph, self.activation(context, up), "down_proj")
