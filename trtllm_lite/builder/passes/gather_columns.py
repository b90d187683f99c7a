"""A Gather of features of packed rows by constant indices becomes GatherColumns (act-order, logits of known tokens)."""

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from trtllm_lite.builder.graph import (
    attribute,
    dims,
    fused_node,
    nodes_of,
    replace_value,
    site,
    value_of,
    weight_tensor,
)
from trtllm_lite.builder.passes.contract import Decision, GraphPass


def _rewrite(graph: ir.Graph) -> Iterator[Decision]:
    for node in nodes_of(graph, "Gather"):
        if _is_order(node):
            rows, order = node.inputs
            y = value_of(f"{node.name}.columns", ir.DataType.FLOAT, dims(node.outputs[0]) or ())
            graph.insert_before(
                node, fused_node("GatherColumns", str(node.name), {"x": rows, "order": order}, {"y": y})
            )
            replace_value(node.outputs[0], y)
            yield Decision(site(node), True)


def _is_order(node: ir.Node) -> bool:
    """Whether the Gather takes features of float32 rows, in the order of an int32 weight.

    The values of the order are checked when an engine is loaded, as a network may have no weights here.
    """
    rows, order = node.inputs
    shape, tensor = dims(rows) or (), weight_tensor(order)
    if rows is None or tensor is None or len(shape) != 2 or attribute(node, "axis", 0) not in (1, -1):
        return False
    return rows.dtype == ir.DataType.FLOAT and tensor.dtype == ir.DataType.INT32 and len(dims(order) or ()) == 1


def _ensures(graph: ir.Graph) -> Iterable[str]:
    for node in nodes_of(graph, "Gather"):
        if _is_order(node):
            yield f"{node.name}, which takes features, was not fused"


GATHER_COLUMNS = GraphPass("gather_columns", _rewrite, ensures=_ensures)
