"""Builds recurrent layers: Mamba-2 (arXiv 2405.21060), in place of attention or beside it.

The layer keeps a matrix for each head, which each token lets decay and adds to, and the last inputs of a convolution
that comes before it.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trtllm_lite.common.vocabulary import RECURRENT
from trtllm_lite.network.context import DecoderContext
from trtllm_lite.network.convolution import CausalConvolution
from trtllm_lite.network.functions import MAMBA2
from trtllm_lite.network.linear import Linear
from trtllm_lite.network.mlp import ACTIVATIONS, Gating
from trtllm_lite.network.norms import RmsNorm
from trtllm_lite.network.scaled import ScaledLinear
from trtllm_lite.network.weight_expression import Ones, WeightExpression

_SILU = ACTIVATIONS["silu"]
NO_BOUNDS = 0.0, float(np.finfo(np.float32).max)  # of the steps of tokens


@dataclass(frozen=True)
class SpaceHeads:
    """Heads of the model: the vectors B and C of a group serve ``num_heads`` / ``num_groups`` successive heads."""

    num_heads: int
    num_groups: int
    state_size: int
    head_dim: int

    @property
    def parts(self) -> tuple[int, int, int]:
        """The features of the inputs of all heads, and of B and C of all groups."""
        vectors = self.num_groups * self.state_size
        return self.num_heads * self.head_dim, vectors, vectors


@dataclass(frozen=True)
class GroupedNorm:
    """The RMS norm of each of ``num_groups`` successive parts of the features, and a gate before or after it.

    norm(y * silu(gate)) * weight, or with ``gate_last`` norm(y) * weight * silu(gate). ``weight`` is [features].
    """

    weight: WeightExpression
    num_groups: int
    epsilon: float
    gate_last: bool = False

    def __call__(self, context: DecoderContext, gating: Gating, gate: ir.Value, y: ir.Value) -> ir.Value:
        """Map ``y`` and ``gate`` [batch, seq, features] to the same shape."""
        graph, (features,) = context.graph, self.weight.shape
        size = features // self.num_groups
        x = y if self.gate_last else gating.gated(context, gate, y)
        split = graph.constant(f"shape.{self.num_groups}_groups_of_{size}", np.array([0, 0, self.num_groups, size]))
        norm = RmsNorm(Ones((size,)), self.epsilon)
        normed = norm(graph, graph.op("Reshape", [x, split], "groups"), f"norm_of_{size}")
        merged = graph.op("Reshape", [normed, graph.constant("shape.merge_groups", np.array([0, 0, -1]))], "merge")
        scaled = graph.op("Mul", [merged, graph.vector(self.weight, "norm.weight")], "norm")
        return gating.gated(context, gate, scaled) if self.gate_last else scaled


@dataclass(frozen=True)
class Mamba2:
    """output(norm(model(convolution(xbc(x)), dt(x)), gate(x))); without a norm the result is ``gating`` of both.

    ``xbc`` makes the inputs of all heads, then the vectors B of all groups, then their C. ``dt`` makes a number for
    each head: it says, with ``dt_bias``, how large a step is, which is kept between the two ``bounds``, and with
    ``a_log`` by how much the head's state decays in such a step. ``d`` is the factor of a head's inputs in its results.
    The three vectors are [num_heads].
    """

    gate: Linear
    xbc: Linear | ScaledLinear
    dt: Linear | ScaledLinear
    convolution: CausalConvolution
    a_log: WeightExpression
    dt_bias: WeightExpression
    d: WeightExpression
    norm: GroupedNorm | None
    output: Linear
    heads: SpaceHeads
    bounds: tuple[float, float] = NO_BOUNDS
    gating: Gating = _SILU

    def __call__(self, context: DecoderContext, x: ir.Value) -> ir.Value:
        """Map normalised activations [batch, seq, hidden] to the same shape; changes the context's next state."""
        graph, heads = context.graph, self.heads
        state = heads.num_heads, heads.state_size, heads.head_dim
        past_inputs, past_state = context.open_state(RECURRENT, self.convolution.state, state)
        gate, projected = self.gate(graph, x, "gate_proj"), self.xbc(graph, x, "xbc_proj")
        with graph.scope("conv"):
            xbc, present_inputs = self.convolution(context, projected, past_inputs)
        operands = [xbc, self.dt(graph, x, "dt_proj"), graph.vector(self.a_log, "a_log")]
        operands += [graph.vector(self.dt_bias, "dt_bias"), graph.vector(self.d, "d"), past_state]
        least, greatest = self.bounds
        attributes = {"num_groups": heads.num_groups, "min_step": least, "max_step": greatest}
        shapes = [("batch", "seq", heads.parts[0]), ("batch", *state)]
        y, present_state = graph.call(MAMBA2, operands, "space", attributes, shapes)
        context.keep_state(present_inputs, present_state)
        if self.norm is None:
            return self.output(graph, self.gating.gated(context, gate, y), "o_proj")
        return self.output(graph, self.norm(context, self.gating, gate, y), "o_proj")
