"""Routes within groups of experts: a token's experts are in its best groups (arXiv 2405.04434, section 2.2.2)."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trtllm_lite.network.graph import GraphBuilder


@dataclass(frozen=True)
class ExpertGroups:
    """A rule: of ``num_groups`` groups of consecutive experts the ``top_groups`` with the largest scores are kept.

    The score of a group is the sum of the scores of its ``num_best`` best experts.
    """

    num_groups: int
    top_groups: int
    num_best: int

    def __call__(self, graph: GraphBuilder, scores: ir.Value, num_experts: int) -> ir.Value:
        """``scores`` [batch, seq, experts] with minus infinity for experts of other groups."""
        size = num_experts // self.num_groups
        members = graph.split(scores, [size] * self.num_groups, "groups.members")
        count, axis = graph.constant(f"top_{self.num_best}", np.array([self.num_best])), self._last_axis(graph)
        totals = []
        for number, part in enumerate(members):
            best, _ = graph.top_k(part, count, f"groups.{number}.best")
            totals.append(graph.op("ReduceSum", [best, axis], f"groups.{number}.score"))
        values = graph.op("Concat", totals, "groups.scores", {"axis": -1})
        top = graph.constant(f"top_{self.top_groups}", np.array([self.top_groups]))
        kept, chosen = graph.top_k(values, top, "groups.top_k")
        nothing = graph.scalar("groups.nothing", -np.inf)
        left_out = graph.op("Add", [graph.zeros_like(values, "groups.zeros"), nothing], "groups.left_out")
        zeros = graph.zeros_like(kept, "groups.kept")
        mask = graph.op("ScatterElements", [left_out, chosen, zeros], "groups.mask", {"axis": -1})
        of_expert = np.arange(num_experts) // size
        order = graph.constant(f"groups_of_{num_experts}_experts_{self.num_groups}", of_expert)
        spread = graph.op("Gather", [mask, order], "groups.spread", {"axis": -1})
        return graph.op("Add", [scores, spread], "groups.masked")

    def _last_axis(self, graph: GraphBuilder) -> ir.Value:
        return graph.constant("axis.last", np.array([-1]))
