"""Computes logits of the rows that a new input names, instead of those of all tokens.

``logits_indices`` int64 [num_logits] counts tokens of the padded batch: row * seq + position. The output ``logits``
becomes float32 [num_logits, vocab].
"""

import numpy as np
import onnx_ir as ir

from trtllm_lite.builder.graph import dims, value_of
from trtllm_lite.builder.passes.contract import Decision, GraphPass, PassError
from trtllm_lite.builder.tensorrt.passes.rewriting import WIDE, constant, insert
from trtllm_lite.common.vocabulary import LOGITS_INDICES
from trtllm_lite.quantize.activations import recognise

NUM_LOGITS = "num_logits"


def _rewrite(graph: ir.Graph) -> list[Decision]:
    head = _head(graph.outputs[0])
    source = head.inputs[0]
    rounded = recognise(source)
    if rounded is not None:  # rows are chosen before they are rounded, as only products may follow the rounding
        source = rounded.source
    assert source is not None
    chosen = _chosen(graph, source)
    for value in _behind(chosen, graph.outputs[0]):
        value.shape = ir.Shape([NUM_LOGITS, *(dims(value) or ())[2:]])
    return [Decision(str(head.name), True)]


def _head(logits: ir.Value) -> ir.Node:
    """The product whose results become ``logits`` through operators that leave rows where they are."""
    value: ir.Value | None = logits
    while (node := None if value is None else value.producer()) is not None and node.op_type != "MatMul":
        value = node.inputs[0]
    if node is None:
        raise PassError("the logits are not made by a product")
    return node


def _chosen(graph: ir.Graph, source: ir.Value) -> ir.Value:
    """The rows of ``source`` [batch, seq, hidden] that the new input names, for all readers of ``source``."""
    readers = list(source.uses())
    first = min((use.node for use in readers), key=list(graph).index)
    hidden = (dims(source) or (None,))[-1]
    indices = value_of(LOGITS_INDICES, ir.DataType.INT64, [NUM_LOGITS])
    graph.inputs.append(indices)
    flat_shape = constant(graph, "logits.flat_shape", np.array([-1, hidden], np.int64))
    flat = insert(graph, first, "Reshape", [source, flat_shape], "logits.rows", WIDE, [None, hidden])
    chosen = insert(graph, first, "Gather", [flat, indices], "logits.chosen", WIDE, [NUM_LOGITS, hidden], {"axis": 0})
    for use in readers:
        use.node.replace_input_with(use.idx, chosen)
    return chosen


def _behind(source: ir.Value, last: ir.Value) -> list[ir.Value]:
    """The values from ``source`` to ``last``, inclusive, that have the same leading axes."""
    found: list[ir.Value] = []
    frontier = [source]
    while frontier:
        for user in {use.node for value in frontier for use in value.uses()}:
            found += [output for output in user.outputs if len(dims(output) or ()) == 3]
        frontier = [output for value in frontier for use in value.uses() for output in use.node.outputs]
    if last not in found:
        raise PassError("the logits do not follow from the rows that were chosen")
    return list(dict.fromkeys(found))


def _all_logits(graph: ir.Graph) -> list[str]:
    shape = dims(graph.outputs[0])
    return [] if shape and shape[:-1] == (NUM_LOGITS,) else [f"the logits have the shape {shape}"]


CHOSEN_LOGITS = GraphPass("chosen_logits", _rewrite, ensures=_all_logits)

__all__ = ["CHOSEN_LOGITS", "NUM_LOGITS"]
