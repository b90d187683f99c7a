"""Builds recurrent layers: Gated DeltaNet (arXiv 2412.06464) and Kimi Delta Attention (arXiv 2510.26692), in place of
attention.

The layer keeps a matrix for each head, which the gated delta rule changes token by token, and the last inputs of a
convolution that comes before it.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trtllm_lite.common.vocabulary import RECURRENT
from trtllm_lite.network.context import DecoderContext
from trtllm_lite.network.convolution import CausalConvolution
from trtllm_lite.network.functions import GATED_DELTA_RULE
from trtllm_lite.network.linear import Linear, LowRankLinear
from trtllm_lite.network.mlp import ACTIVATIONS, Activation
from trtllm_lite.network.norms import Norm
from trtllm_lite.network.weight_expression import WeightExpression

_NORM_EPSILON = 1e-6  # of the norm of queries and keys, in every published model


@dataclass(frozen=True)
class DeltaHeads:
    """Heads of the rule: each key head serves ``num_value_heads`` / ``num_key_heads`` successive value heads."""

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int

    @property
    def parts(self) -> tuple[int, int, int]:
        """The features of all queries, of all keys, and of all values."""
        keys = self.num_key_heads * self.key_dim
        return keys, keys, self.num_value_heads * self.value_dim


@dataclass(frozen=True)
class GatedDeltaNet:
    """output(norm(rule(convolution(qkv(x)), a(x), b(x))) * gating(gate(x))).

    ``qkv`` makes the queries of all heads, then the keys, then the values. ``b`` makes a number for each value head,
    which says how far a token changes the head's state. ``a`` makes one number for each value head, or ``key_dim``: it
    says, with ``dt_bias`` of the same size and ``a_log`` [num_value_heads], by how much the state, or each of its rows,
    decays. ``norm`` applies to each value head.
    """

    qkv: Linear
    gate: Linear | LowRankLinear
    a: Linear | LowRankLinear
    b: Linear
    convolution: CausalConvolution
    a_log: WeightExpression
    dt_bias: WeightExpression
    norm: Norm
    output: Linear
    heads: DeltaHeads
    gating: Activation = ACTIVATIONS["silu"]

    def __call__(self, context: DecoderContext, x: ir.Value) -> ir.Value:
        """Map normalised activations [batch, seq, hidden] to the same shape; changes the context's next state."""
        graph, heads = context.graph, self.heads
        state = heads.num_value_heads, heads.key_dim, heads.value_dim
        past_inputs, past_state = context.open_state(RECURRENT, self.convolution.state, state)
        projected = self.qkv(graph, x, "qkv_proj")
        with graph.scope("conv"):
            qkv, present_inputs = self.convolution(context, projected, past_inputs)
        operands = [qkv, self.a(graph, x, "a_proj"), self.b(graph, x, "b_proj")]
        operands += [graph.vector(self.a_log, "a_log"), graph.vector(self.dt_bias, "dt_bias"), past_state]
        attributes = {
            "num_key_heads": heads.num_key_heads,
            "scale": heads.key_dim**-0.5,
            "norm_epsilon": _NORM_EPSILON,
        }
        shapes = [("batch", "seq", heads.parts[2]), ("batch", *state)]
        y, present_state = graph.call(GATED_DELTA_RULE, operands, "rule", attributes, shapes)
        context.keep_state(present_inputs, present_state)
        return self.output(graph, self._gated_norm(context, y, self.gate(graph, x, "gate_proj")), "o_proj")

    def _gated_norm(self, context: DecoderContext, y: ir.Value, gate: ir.Value) -> ir.Value:
        """The norm of each head of ``y`` [batch, seq, num_value_heads * value_dim], times gating(gate)."""
        graph, heads = context.graph, self.heads
        extents = [0, 0, heads.num_value_heads, heads.value_dim]
        by_head = graph.constant(f"shape.{heads.num_value_heads}_heads_of_{heads.value_dim}", np.array(extents))
        normed = self.norm(graph, graph.op("Reshape", [y, by_head], "heads"), "norm")
        merged = graph.op("Reshape", [normed, graph.constant("shape.merge_heads", np.array([0, 0, -1]))], "merge")
        return self.gating.gated(context, gate, merged)
