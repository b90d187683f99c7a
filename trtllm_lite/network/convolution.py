"""Builds causal convolutions, which mix each channel of a token with those of the few tokens before it."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trtllm_lite.network.context import DecoderContext
from trtllm_lite.network.mlp import Activation
from trtllm_lite.network.weight_expression import WeightExpression

_END = np.iinfo(np.int64).max


@dataclass(frozen=True)
class CausalConvolution:
    """activation(bias[c] + sum over j of weight[c, 0, j] * x[t - (width - 1) + j, c]) for each channel c of token t.

    ``weight`` is [channels, 1, width], of two columns or more. Neither ``bias`` nor ``activation`` need be given.
    """

    weight: WeightExpression
    activation: Activation | None = None
    bias: WeightExpression | None = None

    @property
    def state(self) -> tuple[int, int]:
        """The channels, and how many inputs before a token it looks back."""
        channels, _, width = self.weight.shape
        return channels, width - 1

    def __call__(self, context: DecoderContext, x: ir.Value, past: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Map ``x`` [batch, seq, channels], after the inputs ``past`` [batch, channels, width - 1], to the same shape.

        Also returned are the last width - 1 inputs, which are the next step's past.
        """
        graph, (channels, history) = context.graph, self.state
        columns = graph.op("Transpose", [x], "columns", {"perm": [0, 2, 1]})
        inputs = graph.op("Concat", [past, columns], "inputs", {"axis": 2})
        operands = [inputs, graph.matrix(self.weight, "mixed")]
        operands += [] if self.bias is None else [graph.vector(self.bias, "mixed.bias")]
        mixed = graph.op("Conv", operands, "mixed", {"group": channels, "kernel_shape": [history + 1]})
        activated = mixed if self.activation is None else self.activation(context, mixed)
        start = graph.constant(f"conv.start_{history}", np.array([-history]))
        end, axis = graph.constant("conv.end", np.array([_END])), graph.constant("conv.axis", np.array([2]))
        present = graph.op("Slice", [inputs, start, end, axis], "present")
        rows = graph.op("Transpose", [activated], "rows", {"perm": [0, 2, 1]})
        # Shape inference does not know that the convolution leaves as many tokens as there are.
        rows.type, rows.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(("batch", "seq", channels))
        return rows, present
