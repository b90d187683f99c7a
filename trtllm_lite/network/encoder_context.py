"""Makes the nodes that the layers of an encoder share: inputs, and masks by distances between tokens.

Texts of a batch are padded at the right. ``seq_lens`` are their lengths: attention masks the keys after them, and
results for pad tokens are not used.
"""

import numpy as np
import onnx_ir as ir

from trtllm_lite.common.vocabulary import SEQ_LENS
from trtllm_lite.network.context import NetworkContext, declare
from trtllm_lite.network.graph import GraphBuilder
from trtllm_lite.network.weight_expression import WeightExpression


class EncoderContext(NetworkContext):
    """Declares the inputs of an encoder, and makes masks once, when the first layer asks for them."""

    def __init__(self, graph: GraphBuilder) -> None:
        super().__init__(graph)
        self.seq_lens = declare(SEQ_LENS, ir.DataType.INT64, ("batch",))
        self._windows: dict[int, ir.Value] = {}
        self._biases: dict[WeightExpression, ir.Value] = {}

    def slots(self) -> ir.Value:
        """int64 [seq]: 0, 1, …"""
        graph = self.graph

        def make() -> ir.Value:
            length = graph.op("Shape", [self.input_ids], "seq.shape", {"start": 1, "end": 2})
            zero, one = graph.constant("zero", np.array(0)), graph.constant("one", np.array(1))
            return graph.op("Range", [zero, graph.op("Squeeze", [length], "seq"), one], "slots")

        return self.once("slots", make)

    def window_mask(self, window: int) -> ir.Value:
        """bool [batch, 1, seq, seq], true where a key is at most ``window`` tokens before or after its query.

        A pad token counts as its text's last token, so that it attends to some key.
        """
        if window not in self._windows:
            slots = self.slots()
            with self.graph.shared(), self.graph.scope(f"mask.window_{window}"):
                self._windows[window] = self._make_window_mask(slots, window)
        return self._windows[window]

    def _make_window_mask(self, slots: ir.Value, window: int) -> ir.Value:
        graph = self.graph
        axes = graph.constant("axes.head_and_slot", np.array([1, 3]))
        positions = graph.op("Unsqueeze", [self.position_ids, axes], "positions")
        last = graph.op("Sub", [self.seq_lens, graph.constant("one", np.array(1))], "last")
        all_axes = graph.constant("axes.behind_batch", np.array([1, 2, 3]))
        real = graph.op("Min", [positions, graph.op("Unsqueeze", [last, all_axes], "last.column")], "real")
        distances = graph.op("Abs", [graph.op("Sub", [slots, real], "offsets")], "distances")
        width = graph.constant(f"window_{window}", np.array(window))
        return graph.op("LessOrEqual", [distances, width], "inside")

    def distance_bias(self, table: WeightExpression) -> ir.Value:
        """float32 [1, heads, seq, seq]: for each query and key the column of ``table`` for their distance.

        ``table`` is [heads, 2 * D + 1]; column D + d is for keys that are d tokens after their query. Distances beyond
        D count as D.
        """
        if table not in self._biases:
            name = f"distance_bias_{len(self._biases) + 1}" if self._biases else "distance_bias"
            slots = self.slots()
            with self.graph.shared(), self.graph.scope(name):
                self._biases[table] = self._make_distance_bias(slots, table)
        return self._biases[table]

    def _make_distance_bias(self, slots: ir.Value, table: WeightExpression) -> ir.Value:
        graph, most = self.graph, table.shape[1] // 2
        first, middle = (graph.constant(f"axis.{name}", np.array([n])) for n, name in enumerate(("first", "middle")))
        keys, queries = graph.op("Unsqueeze", [slots, first], "keys"), graph.op("Unsqueeze", [slots, middle], "queries")
        least = graph.constant(f"distance_{-most}", np.array(-most))
        largest = graph.constant(f"distance_{most}", np.array(most))
        clipped = graph.op("Clip", [graph.op("Sub", [keys, queries], "offsets"), least, largest], "clipped")
        column = graph.op("Add", [clipped, largest], "columns")
        rows = graph.op("Gather", [graph.vector(table, "weight"), column], "rows", {"axis": 1})
        return graph.op("Unsqueeze", [rows, first], "bias")
