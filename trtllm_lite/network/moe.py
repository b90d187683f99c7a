"""Mixtures of experts: a router chooses a few of many gated MLPs for each token (arXiv 2101.03961, 2401.04088).

In standard operators all experts are one gated MLP, whose inner features are those of all of them side by side: those
of each expert are multiplied with the token's share of the expert, which is zero for all but the chosen ones. The
builder replaces this by operators that compute the chosen experts alone.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from trtllm_lite.network.context import DecoderContext
from trtllm_lite.network.expert_groups import ExpertGroups
from trtllm_lite.network.graph import GraphBuilder
from trtllm_lite.network.mlp import Activation, GatedMlp
from trtllm_lite.network.weight_expression import WeightExpression

# How shares come from the router's scores: softmax or sigmoid of the scores of all experts, of which the largest are
# kept, as they are or divided by their sum; or softmax or sigmoid of the largest scores alone.
Scoring = Literal[
    "softmax", "normalized_softmax", "softmax_of_chosen", "sigmoid", "normalized_sigmoid", "sigmoid_of_chosen"
]
LEAST_TOTAL = 1e-20  # what is added to the sum of sigmoids, so that it is not 0


@dataclass(frozen=True)
class Router:
    """Chooses ``top_k`` experts for each token; ``weight`` is [experts, hidden], stored and multiplied in float32.

    ``correction`` [experts] is added to what experts are chosen by, and not to their shares (arXiv 2408.15664);
    ``groups`` say among which experts a token chooses; ``scale`` is a factor of all shares. Of experts with equal
    scores the one of the lower number is chosen.
    """

    weight: WeightExpression
    top_k: int
    scoring: Scoring
    correction: WeightExpression | None = None
    groups: ExpertGroups | None = None
    scale: float = 1.0

    def __call__(self, graph: GraphBuilder, x: ir.Value) -> ir.Value:
        """Map activations [batch, seq, hidden] to every expert's share, [batch, seq, experts]."""
        logits = graph.op("MatMul", [x, graph.vector(self.weight.transpose(), "weight")], "logits")
        function = "Sigmoid" if "sigmoid" in self.scoring else "Softmax"
        attributes = {} if function == "Sigmoid" else {"axis": -1}
        of_chosen = self.scoring.endswith("_of_chosen")
        scores = logits if of_chosen else graph.op(function, [logits], function.lower(), attributes)
        values, chosen = self._choose(graph, scores)
        if of_chosen:
            values = graph.op(function, [values], function.lower(), attributes)
        if self.scoring.startswith("normalized"):
            values = self._normalized(graph, values)
        if self.scale != 1:
            values = graph.op("Mul", [values, graph.scalar("scale", self.scale)], "scaled")
        # x < x is false, also for numbers that are not finite: zeros for all experts.
        nowhere = graph.op("Less", [logits, logits], "nowhere")
        zeros = graph.op("Cast", [nowhere], "zeros", {"to": ir.DataType.FLOAT.value})
        return graph.op("ScatterElements", [zeros, chosen, values], "shares", {"axis": -1})

    def _choose(self, graph: GraphBuilder, scores: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The scores of the chosen experts, and which these are."""
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

    def _normalized(self, graph: GraphBuilder, values: ir.Value) -> ir.Value:
        total = graph.op("ReduceSum", [values, graph.constant("axis.last", np.array([-1]))], "total")
        if "sigmoid" in self.scoring:
            total = graph.op("Add", [total, graph.scalar("least_total", LEAST_TOTAL)], "total.positive")
        return graph.op("Div", [values, total], "normalized")


@dataclass(frozen=True)
class Experts:
    """The sum of down(activation(gate(x)) * up(x) * share) over experts.

    ``gate`` and ``up`` are [experts, inner, hidden], ``down`` is [experts, hidden, inner].
    """

    gate: WeightExpression
    up: WeightExpression
    down: WeightExpression
    activation: Activation

    def __call__(self, context: DecoderContext, x: ir.Value, shares: ir.Value) -> ir.Value:
        """Map activations [batch, seq, hidden] and shares [batch, seq, experts] to the shape of the activations."""
        graph = context.graph
        experts, _, inner = self.down.shape
        gate, up = (self._widen(graph, x, *part) for part in ((self.gate, "gate_proj"), (self.up, "up_proj")))
        gated = graph.op("Mul", [self.activation(context, gate), up], "gated")
        spread = graph.op("Gather", [shares, context.expert_of_feature(experts, inner)], "spread", {"axis": -1})
        weighted = graph.op("Mul", [gated, spread], "weighted")
        down, flat = graph.matrix(self.down, "down_proj"), self._flat_shape(graph)
        columns = graph.op("Transpose", [down], "down_proj.transpose", {"perm": [0, 2, 1]})
        return graph.op("MatMul", [weighted, graph.op("Reshape", [columns, flat], "down_proj.flat")], "down_proj")

    def _widen(self, graph: GraphBuilder, x: ir.Value, weight: WeightExpression, name: str) -> ir.Value:
        """The features of all experts side by side, [batch, seq, experts * inner]."""
        rows = graph.op("Reshape", [graph.matrix(weight, name), self._flat_shape(graph)], f"{name}.flat")
        columns = graph.op("Transpose", [rows], f"{name}.transpose", {"perm": [1, 0]})
        return graph.op("MatMul", [x, columns], name)

    def _flat_shape(self, graph: GraphBuilder) -> ir.Value:
        experts, hidden, inner = self.down.shape
        return graph.constant(f"shape.{experts * inner}_{hidden}", np.array([experts * inner, hidden]))


@dataclass(frozen=True)
class SharedExpert:
    """An MLP for all tokens, times sigmoid(gate . x) if there is a ``gate`` [1, hidden], stored in float32."""

    mlp: GatedMlp
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
class Moe:
    """A mixture of experts, perhaps with a shared expert beside them."""

    router: Router
    experts: Experts
    shared: SharedExpert | None = None

    def __call__(self, context: DecoderContext, x: ir.Value) -> ir.Value:
        """Map activations [batch, seq, hidden] to the same shape."""
        graph = context.graph
        with graph.scope("router"):
            shares = self.router(graph, x)
        with graph.scope("experts"):
            mixed = self.experts(context, x, shares)
        if self.shared is None:
            return mixed
        with graph.scope("shared_expert"):
            shared = self.shared(context, x)
        return graph.op("Add", [mixed, shared], "with_shared_expert")
