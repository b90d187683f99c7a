"""Builds attention sinks: an additional key per head, with a learned score and a value of zero (arXiv 2508.10925).

Every query sees the sink, so that a head may attend to nothing. In standard operators it is a token of zeros before the
caches' first token, and the mask adds its score.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trtllm_lite.network.context import DecoderContext
from trtllm_lite.network.graph import GraphBuilder
from trtllm_lite.network.weight_expression import WeightExpression

_TOKEN_PADS = [0, 0, 1, 0, 0, 0, 0, 0]


@dataclass(frozen=True)
class Sinks:
    """The sinks' ``scores`` [num_heads], stored in float32."""

    scores: WeightExpression

    def before(self, graph: GraphBuilder, cache: ir.Value, what: str) -> ir.Value:
        """``cache`` [batch, kv_heads, max_seq, head_dim] with a token of zeros before its first token."""
        pads = graph.constant("sink.token_pads", np.array(_TOKEN_PADS))
        return graph.op("Pad", [cache, pads], f"sink.{what}")

    def total_lens(self, context: DecoderContext) -> ir.Value:
        """int64 [batch]: the tokens of each row, plus the token of zeros."""
        graph, lens = context.graph, context.total_lens()
        one = graph.constant("one", np.array(1))
        return context.once("sink.lens", lambda: graph.op("Add", [lens, one], "sink.lens"))

    def mask(self, context: DecoderContext, mask: ir.Value | None) -> ir.Value:
        """The addend of scores, float32 [batch or 1, num_heads, seq, 1 + max_seq]: the sinks, and ``mask`` if given.

        ``mask`` is bool [batch, 1, seq, max_seq]. Only layers that have opened their cache may call this.
        """
        graph, (heads,) = context.graph, self.scores.shape
        by_head = graph.constant(f"sink.shape_{heads}", np.array([1, heads, 1, 1]))
        column = graph.op("Reshape", [graph.vector(self.scores, "sinks"), by_head], "sink.column")
        added = graph.op("Pad", [column, _pads(context)], "sink.bias")
        if mask is None:
            return graph.op("Expand", [added, _extents(context)], "sink.mask")
        pads = graph.constant("sink.mask_pads", np.array([0, 0, 0, 1, 0, 0, 0, 0]))
        seen = graph.op("Pad", [mask, pads, graph.constant("true", np.array(True))], "sink.seen")
        hidden = graph.constant("minus_infinity", np.array(-np.inf, np.float32))
        return graph.op("Where", [seen, added, hidden], "sink.mask")


def without_sink(value: ir.Value | None) -> ir.Value | None:
    """The cache to which ``value`` adds a token of zeros, or ``value`` itself if it adds none."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "Pad" or len(node.inputs) > 2 or node.attributes:
        return value
    pads = ir.convenience.get_const_tensor(node.inputs[1]) if node.inputs[1] is not None else None
    return node.inputs[0] if pads is not None and pads.numpy().tolist() == _TOKEN_PADS else value


def _pads(context: DecoderContext) -> ir.Value:
    """int64 [8]: the pads that turn [1, heads, 1, 1] into [1, heads, 1, 1 + max_seq]."""
    graph = context.graph

    def make() -> ir.Value:
        max_seq = graph.op("Shape", [context.past[0]], "sink.max_seq", {"start": 2, "end": 3})
        return graph.op("Concat", [graph.constant("zeros_7", np.zeros(7, np.int64)), max_seq], "sink.pads", {"axis": 0})

    return context.once("sink.pads", make)


def _extents(context: DecoderContext) -> ir.Value:
    """int64 [2]: seq and 1, the extents to which [1, heads, 1, slots] is expanded."""
    graph = context.graph

    def make() -> ir.Value:
        seq = graph.op("Shape", [context.input_ids], "sink.seq", {"start": 1, "end": 2})
        return graph.op("Concat", [seq, graph.constant("ones_1", np.array([1]))], "sink.extents", {"axis": 0})

    return context.once("sink.extents", make)
