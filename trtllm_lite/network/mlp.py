"""The feed-forward blocks of decoder layers and their activation functions."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from trtllm_lite.network.context import NetworkContext
from trtllm_lite.network.graph import Attribute
from trtllm_lite.network.linear import Linear


@dataclass(frozen=True)
class Activation:
    """An elementwise function: one node of the standard operator ``op_type``, called ``name``."""

    op_type: str
    name: str
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    def __call__(self, context: NetworkContext, x: ir.Value) -> ir.Value:
        """Apply the function to every element."""
        return context.graph.op(self.op_type, [x], self.name, self.attributes)


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
class GatedMlp:
    """down(activation(gate(x)) * up(x)) (arXiv 2002.05202)."""

    gate: Linear
    up: Linear
    down: Linear
    activation: Activation

    def __call__(self, context: NetworkContext, x: ir.Value) -> ir.Value:
        """Map activations [batch, seq, hidden] to the same shape."""
        graph = context.graph
        gate, up = self.gate(graph, x, "gate_proj"), self.up(graph, x, "up_proj")
        product = graph.op("Mul", [self.activation(context, gate), up], "gated")
        return self.down(graph, product, "down_proj")


@dataclass(frozen=True)
class PlainMlp:
    """down(activation(up(x))) (arXiv 1706.03762, section 3.3)."""

    up: Linear
    down: Linear
    activation: Activation

    def __call__(self, context: NetworkContext, x: ir.Value) -> ir.Value:
        """Map activations [batch, seq, hidden] to the same shape."""
        widened = self.up(context.graph, x, "up_proj")
        return self.down(context.graph, self.activation(context, widened), "down_proj")
