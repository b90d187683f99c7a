"""Shares out to two experts like SparseMixer (arXiv 2310.00811, 2409.12136) at inference, which has no randomness."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trtllm_lite.network.graph import GraphBuilder


@dataclass(frozen=True)
class SparseMixer:
    """The share of each choice is that of a softmax over the experts that are left and not far from it.

    Left are the experts that are not chosen before. One with score s is far from a choice with score c if c - s is
    greater than ``threshold`` * max(|s|, c).
    """

    threshold: float

    def __call__(self, graph: GraphBuilder, scores: ir.Value, best: ir.Value, chosen: ir.Value, top_k: int) -> ir.Value:
        """The shares [batch, seq, top_k] of the ``chosen`` experts, whose scores are the ``best`` of all ``scores``."""
        nothing, left, shares = graph.scalar("mixer.nothing", -np.inf), scores, []
        parts = (("best", best), ("chosen", chosen))
        best_of, experts = (graph.split(values, [1] * top_k, f"mixer.{name}") for name, values in parts)
        for number, (score, expert) in enumerate(zip(best_of, experts, strict=True)):
            name = f"mixer.{number}"
            kept = graph.op("Where", [self._is_far(graph, scores, score, name), nothing, left], f"{name}.kept")
            softmax = graph.op("Softmax", [kept], f"{name}.softmax", {"axis": -1})
            shares.append(graph.op("GatherElements", [softmax, expert], f"{name}.share", {"axis": -1}))
            if number + 1 < top_k:
                taken = graph.op("Add", [graph.zeros_like(score, f"{name}.zero"), nothing], f"{name}.taken")
                left = graph.op("ScatterElements", [left, expert, taken], f"{name}.left", {"axis": -1})
        return graph.op("Concat", shares, "mixer.shares", {"axis": -1})

    def _is_far(self, graph: GraphBuilder, scores: ir.Value, score: ir.Value, name: str) -> ir.Value:
        magnitude = graph.op("Abs", [scores], f"{name}.magnitude")
        reference = graph.op("Max", [magnitude, score], f"{name}.reference")
        most = graph.op("Mul", [reference, graph.scalar("mixer.threshold", self.threshold)], f"{name}.most")
        return graph.op("Less", [most, graph.op("Sub", [score, scores], f"{name}.gap")], f"{name}.is_far")
