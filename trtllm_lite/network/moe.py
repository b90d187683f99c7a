"""Builds mixtures of experts: a router chooses a few of many gated MLPs per token (arXiv 2101.03961, 2401.04088).

In standard operators all experts are one gated MLP with concatenated inner features: the features of each expert are
multiplied by its share (routing weight), which is zero unless the expert is chosen. The builder replaces this by
operators that compute only the chosen experts. Matrices of experts in blocks multiply unrounded activations, whatever a
source or a scheme rounds elsewhere.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from trtllm_lite.network.context import DecoderContext
from trtllm_lite.network.expert_groups import ExpertGroups
from trtllm_lite.network.graph import GraphBuilder
from trtllm_lite.network.linear import Linear
from trtllm_lite.network.mlp import GatedMlp, Gating, PlainMlp
from trtllm_lite.network.sparse_mixer import SparseMixer
from trtllm_lite.network.weight_expression import WeightExpression

# How shares come from the router's scores: as softmax or sigmoid of the scores of all experts, the largest of which are
# kept, unchanged or divided by their sum; or as softmax or sigmoid of the largest scores alone.
Scoring = Literal[
    "softmax", "normalized_softmax", "softmax_of_chosen", "sigmoid", "normalized_sigmoid", "sigmoid_of_chosen"
]
LEAST_TOTAL = 1e-20  # added to the sum of sigmoids, so that it is not 0
EXPERTS, SHARED_EXPERT = "experts", "shared_expert"  # scopes of a mixture


@dataclass(frozen=True)
class Router:
    """Chooses ``top_k`` experts for each token; ``weight`` is [experts, hidden], stored and multiplied in float32.

    A ``bias`` [experts] is added to the logits. ``correction`` [experts] is added to scores for the choice of
    experts, but not to their shares (arXiv 2408.15664); ``groups`` restricts the choice; ``scale`` is a factor of all
    shares, and ``factors`` [experts] are of the shares of each expert. Among experts with equal scores the one with the
    lower number is chosen.
    """

    weight: WeightExpression
    top_k: int
    scoring: Scoring | SparseMixer
    correction: WeightExpression | None = None
    groups: ExpertGroups | None = None
    scale: float = 1.0
    bias: WeightExpression | None = None
    factors: WeightExpression | None = None

    def __call__(self, graph: GraphBuilder, x: ir.Value) -> ir.Value:
        """Map activations [batch, seq, hidden] to every expert's share, [batch, seq, experts]."""
        logits = graph.op("MatMul", [x, graph.vector(self.weight.transpose(), "weight")], "logits")
        if self.bias is not None:
            logits = graph.op("Add", [logits, graph.vector(self.bias, "bias")], "bias")
        if isinstance(self.scoring, SparseMixer):
            best, chosen = self._choose(graph, logits)
            values = self.scoring(graph, logits, best, chosen, self.top_k)
        else:
            values, chosen = self._share(graph, logits, self.scoring)
        if self.scale != 1:
            values = graph.op("Mul", [values, graph.scalar("scale", self.scale)], "scaled")
        if self.factors is not None:
            own = graph.op("Gather", [graph.vector(self.factors, "factors"), chosen], "factors_of_chosen", {"axis": 0})
            values = graph.op("Mul", [values, own], "values_of_experts")
        return graph.op("ScatterElements", [graph.zeros_like(logits, "zeros"), chosen, values], "shares", {"axis": -1})

    def _share(self, graph: GraphBuilder, logits: ir.Value, scoring: Scoring) -> tuple[ir.Value, ir.Value]:
        """The shares of the chosen experts before ``scale``, and the numbers of the experts."""
        function = "Sigmoid" if "sigmoid" in scoring else "Softmax"
        attributes = {} if function == "Sigmoid" else {"axis": -1}
        of_chosen = scoring.endswith("_of_chosen")
        scores = logits if of_chosen else graph.op(function, [logits], function.lower(), attributes)
        values, chosen = self._choose(graph, scores)
        if of_chosen:
            values = graph.op(function, [values], function.lower(), attributes)
        if scoring.startswith("normalized"):
            values = self._normalized(graph, values, function)
        return values, chosen

    def _choose(self, graph: GraphBuilder, scores: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The scores of the chosen experts, and the numbers of the experts."""
        chosen_by = scores
        if self.correction is not None:
            chosen_by = graph.op("Add", [scores, graph.vector(self.correction, "correction")], "corrected")
        if self.groups is not None:
            chosen_by = self.groups(graph, chosen_by, self.weight.shape[0])
        top_k = graph.constant(f"top_{self.top_k}", np.array([self.top_k]))
        values, chosen = graph.top_k(chosen_by, top_k, "top_k")
        if chosen_by is not scores:
            values = graph.op("GatherElements", [scores, chosen], "scores_of_chosen", {"axis": -1})
        return values, chosen

    def _normalized(self, graph: GraphBuilder, values: ir.Value, function: str) -> ir.Value:
        total = graph.op("ReduceSum", [values, graph.constant("axis.last", np.array([-1]))], "total")
        if function == "Sigmoid":
            total = graph.op("Add", [total, graph.scalar("least_total", LEAST_TOTAL)], "total.positive")
        return graph.op("Div", [values, total], "normalized")


@dataclass(frozen=True)
class Biases:
    """Biases of the projections of all experts: ``gate`` and ``up`` [experts * inner], ``down`` [experts * hidden]."""

    gate: WeightExpression
    up: WeightExpression
    down: WeightExpression


@dataclass(frozen=True)
class Experts:
    """The sum of down(activation(gate(x)) * up(x)) * share over ``num_experts`` experts, or with another gating.

    If ``gate`` is None, the up projection gates itself.

    With ``scale_inputs`` (Llama 4), the share multiplies x instead, and there are no biases. Matrices hold the rows of
    all experts, one expert after the other: ``gate`` and ``up`` are [experts * inner, hidden], ``down`` is [experts *
    hidden, inner].
    """

    num_experts: int
    gate: WeightExpression | None
    up: WeightExpression
    down: WeightExpression
    activation: Gating
    biases: Biases | None = None
    scale_inputs: bool = False

    def __call__(self, context: DecoderContext, x: ir.Value, shares: ir.Value) -> ir.Value:
        """Map activations [batch, seq, hidden] and shares [batch, seq, experts] to the shape of the activations."""
        graph, biases = context.graph, self.biases
        gate = None
        if self.gate is not None:
            gate = self._inner_features(graph, x, self.gate, None if biases is None else biases.gate, "gate_proj")
        up = self._inner_features(graph, x, self.up, None if biases is None else biases.up, "up_proj")
        gate = up if gate is None else gate
        features = context.expert_of_feature(self.num_experts, self.down.shape[1])
        spread = graph.op("Gather", [shares, features], "spread", {"axis": -1})
        if self.scale_inputs:  # an expert that is not chosen gets inputs of 0, and returns 0
            gate, up = graph.op("Mul", [gate, spread], "gate.scaled"), graph.op("Mul", [up, spread], "up.scaled")
        weighted = self.activation.gated(context, gate, up)
        if not self.scale_inputs:
            weighted = graph.op("Mul", [weighted, spread], "weighted")
        mixed = graph.op("MatMul", [weighted, self._columns(graph, self.down, "down_proj", (0, 2, 1))], "down_proj")
        if biases is None:
            return mixed
        by_expert = graph.constant(f"shape.{self.num_experts}_each", np.array([self.num_experts, -1]))
        down = graph.op("Reshape", [graph.vector(biases.down, "down_proj.bias"), by_expert], "down_proj.bias.by_expert")
        added = graph.op("MatMul", [shares, down], "down_proj.biases")
        return graph.op("Add", [mixed, added], "down_proj.bias")

    def _inner_features(
        self, graph: GraphBuilder, x: ir.Value, weight: WeightExpression, bias: WeightExpression | None, name: str
    ) -> ir.Value:
        """The inner features of all experts, concatenated: [batch, seq, experts * inner]."""
        product = graph.op("MatMul", [x, self._columns(graph, weight, name, (2, 0, 1))], name)
        if bias is None:
            return product
        return graph.op("Add", [product, graph.vector(bias, f"{name}.bias")], f"{name}.bias")

    def _columns(
        self, graph: GraphBuilder, weight: WeightExpression, name: str, perm: tuple[int, int, int]
    ) -> ir.Value:
        """The right operand of a product: ``weight`` as [experts, rows, depth] with axes in the order ``perm``.

        Then experts and their features are merged into one axis.
        """
        experts, (rows, depth) = self.num_experts, weight.shape
        shape = (experts, rows // experts, depth)
        by_expert = graph.constant(f"shape.{'_'.join(map(str, shape))}", np.array(shape))
        matrices = graph.op("Reshape", [graph.matrix(weight, name, plain_input=True), by_expert], f"{name}.by_expert")
        moved = graph.op("Transpose", [matrices], f"{name}.transpose", {"perm": list(perm)})
        first, _, last = (shape[axis] for axis in perm)
        extents = (first, -1) if perm[0] else (-1, last)
        flat = graph.constant(f"shape.flat_{'_'.join(map(str, extents))}", np.array(extents))
        return graph.op("Reshape", [moved, flat], f"{name}.flat")


@dataclass(frozen=True)
class SharedExpert:
    """An MLP for all tokens, times sigmoid(gate . x) if there is a ``gate`` [1, hidden], stored in float32."""

    mlp: GatedMlp | PlainMlp
    gate: WeightExpression | None = None

    def __call__(self, context: DecoderContext, x: ir.Value) -> ir.Value:
        """Map activations [batch, seq, hidden] to the same shape."""
        graph = context.graph
        y = self.mlp(context, x)
        if self.gate is None:
            return y
        logit = graph.op("MatMul", [x, graph.vector(self.gate.transpose(), "gate.weight")], "gate")
        return graph.op("Mul", [y, graph.op("Sigmoid", [logit], "gate.sigmoid")], "gated_output")


@dataclass(frozen=True)
class Latent:
    """The linear layers around experts that work on fewer features than the residual stream has."""

    into: Linear
    out: Linear


@dataclass(frozen=True)
class Moe:
    """A mixture of experts, perhaps with a shared expert, which like the router never works on a ``latent``."""

    router: Router
    experts: Experts
    shared: SharedExpert | None = None
    latent: Latent | None = None

    def __call__(self, context: DecoderContext, x: ir.Value) -> ir.Value:
        """Map activations [batch, seq, hidden] to the same shape."""
        graph = context.graph
        with graph.scope("router"):
            shares = self.router(graph, x)
        with graph.scope(EXPERTS):
            mixed = self._mix(context, x, shares)
        if self.shared is None:
            return mixed
        with graph.scope(SHARED_EXPERT):
            shared = self.shared(context, x)
        return graph.op("Add", [mixed, shared], "with_shared_expert")

    def _mix(self, context: DecoderContext, x: ir.Value, shares: ir.Value) -> ir.Value:
        """The sum of the experts' outputs."""
        if self.latent is None:
            return self.experts(context, x, shares)
        mixed = self.experts(context, self.latent.into(context.graph, x, "latent_in"), shares)
        return self.latent.out(context.graph, mixed, "latent_out")
