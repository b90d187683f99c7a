"""Builds the pooling of a text's rows to one row."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trtllm_lite.network.encoder_context import EncoderContext
from trtllm_lite.network.graph import GraphBuilder

_FLOAT = ir.DataType.FLOAT


@dataclass(frozen=True)
class Pooling:
    """The pooling of a text: the mean over its tokens, or the ``first`` row; optionally divided by its norm."""

    first: bool = False
    normalize: bool = False

    def __call__(self, context: EncoderContext, hidden: ir.Value) -> ir.Value:
        """Map activations [batch, seq, hidden] to [batch, hidden]."""
        graph = context.graph
        with graph.scope("pooling"):
            row = self._first(graph, hidden) if self.first else self._mean(context, hidden)
            if self.normalize:
                row = graph.op("LpNormalization", [row], "normalized", {"axis": -1, "p": 2})
        return row

    def _first(self, graph: GraphBuilder, hidden: ir.Value) -> ir.Value:
        return graph.op("Gather", [hidden, graph.constant("zero", np.array(0))], "first", {"axis": 1})

    def _mean(self, context: EncoderContext, hidden: ir.Value) -> ir.Value:
        """The mean over tokens, as a product with a mask [batch, 1, seq] of zeros and ones."""
        graph = context.graph
        axes = graph.constant("axes.middle_and_last", np.array([1, 2]))
        lens = graph.op("Unsqueeze", [context.seq_lens, axes], "lens")
        mask = graph.op("Cast", [graph.op("Less", [context.slots(), lens], "is_token")], "mask", {"to": _FLOAT.value})
        total = graph.op("MatMul", [mask, hidden], "total")
        counts = graph.op("Cast", [lens], "counts", {"to": _FLOAT.value})
        middle = graph.constant("axis.middle", np.array([1]))
        return graph.op("Squeeze", [graph.op("Div", [total, counts], "mean"), middle], "mean.row")
