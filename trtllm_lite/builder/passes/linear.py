"""Fuses MatMul with a transposed weight, the dequantization of the weight, and the Add of a bias into one Linear."""

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from trtllm_lite.builder.graph import (
    attribute,
    dims,
    fused_node,
    nodes_of,
    only_user,
    produced_by,
    replace_value,
    site,
    value_of,
    weight_tensor,
)
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.quantize.formats import FORMATS, StoredMatrix


def _rewrite(graph: ir.Graph) -> Iterator[Decision]:
    for node in nodes_of(graph, "MatMul"):
        matrix = transposed_matrix(node.inputs[1])
        if matrix is None or len(dims(node.inputs[0]) or ()) != 2:
            names = ", ".join(known.name for known in FORMATS)
            reason = f"expected packed rows times the transpose of a weight matrix in a known format ({names})"
            yield Decision(site(node), False, reason)
            continue
        _fuse(graph, node, matrix)
        yield Decision(site(node), True)


def transposed_matrix(value: ir.Value | None) -> StoredMatrix | None:
    """W [N, K] if ``value`` is Transpose(W), in any format that W may be stored in."""
    transpose = produced_by(value, "Transpose")
    if transpose is None or tuple(attribute(transpose, "perm", (1, 0))) != (1, 0):
        return None
    return next((matrix for known in FORMATS if (matrix := known.recognise(transpose.inputs[0]))), None)


def _bias(node: ir.Node) -> tuple[ir.Node, ir.Value] | None:
    """The Add after the MatMul, and its float32 vector with an element for each output feature; None if absent."""
    add = only_user(node.outputs[0])
    if add is None or add.op_type != "Add":
        return None
    other = next((value for value in add.inputs if value is not node.outputs[0]), None)
    if other is None or weight_tensor(other) is None or dims(other) != (dims(node.outputs[0]) or ())[-1:]:
        return None
    return (add, other) if other.dtype == ir.DataType.FLOAT else None


def _fuse(graph: ir.Graph, node: ir.Node, matrix: StoredMatrix) -> None:
    found = _bias(node)
    result, bias = (found[0].outputs[0], found[1]) if found else (node.outputs[0], None)
    output = value_of(f"{node.name}.linear", ir.DataType.FLOAT, dims(result) or ())
    inputs = {"x": node.inputs[0], **matrix.within(graph), "bias": bias}
    fused = fused_node("Linear", str(node.name), inputs, {"y": output}, {"activation": "none"})
    graph.insert_before(node, fused)
    replace_value(result, output)


def _ensures(graph: ir.Graph) -> Iterable[str]:
    for node in nodes_of(graph, "MatMul"):
        if transposed_matrix(node.inputs[1]) is not None and len(dims(node.inputs[0]) or ()) == 2:
            yield f"{node.name} is a linear layer that was not fused"


LINEAR = GraphPass("linear", _rewrite, ensures=_ensures)
