"""Builds short convolutions in place of attention, which mix a token with the few tokens before it (LFM2)."""

from dataclasses import dataclass

import onnx_ir as ir

from trtllm_lite.common.vocabulary import CONVOLUTION
from trtllm_lite.network.context import DecoderContext
from trtllm_lite.network.convolution import CausalConvolution
from trtllm_lite.network.linear import Linear


@dataclass(frozen=True)
class ShortConvolution:
    """output(output_gate(x) * convolution(input_gate(x) * value(x))), products by element.

    The layer keeps the last inputs of its convolution, and nothing else.
    """

    input_gate: Linear
    output_gate: Linear
    value: Linear
    convolution: CausalConvolution
    output: Linear

    def __call__(self, context: DecoderContext, x: ir.Value) -> ir.Value:
        """Map normalised activations [batch, seq, hidden] to the same shape; changes the context's next state."""
        graph = context.graph
        (past,) = context.open_state(CONVOLUTION, self.convolution.state)
        values, gates = self.value(graph, x, "x_proj"), self.input_gate(graph, x, "b_proj")
        inputs = graph.op("Mul", [gates, values], "gated_input")
        with graph.scope("conv"):
            mixed, present = self.convolution(context, inputs, past)
        context.keep_state(present)
        gated = graph.op("Mul", [self.output_gate(graph, x, "c_proj"), mixed], "gated_output")
        return self.output(graph, gated, "o_proj")
