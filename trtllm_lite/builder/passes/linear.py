"""MatMul with a transposed weight, the Cast that widens the weight, and the Add of a bias become one Linear."""

from collections.abc import Iterable

import onnx_ir as ir

from trtllm_lite.builder.graph import (
    WEIGHT_DTYPES,
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


def _rewrite(graph: ir.Graph) -> list[Decision]:
    decisions = []
    for node in nodes_of(graph, "MatMul"):
        weight = _weight(node.inputs[1])
        if weight is None or len(dims(node.inputs[0]) or ()) != 2:
            reason = "expected packed rows times the transpose of a float weight matrix"
            decisions.append(Decision(site(node), False, reason))
            continue
        _fuse(graph, node, weight)
        decisions.append(Decision(site(node), True))
    return decisions


def _weight(value: ir.Value | None) -> ir.Value | None:
    """W [N, K] if ``value`` is Transpose(W) or Transpose(Cast(W, float32))."""
    transpose = produced_by(value, "Transpose")
    if transpose is None or tuple(attribute(transpose, "perm", (1, 0))) != (1, 0):
        return None
    source = transpose.inputs[0]
    cast = produced_by(source, "Cast")
    weight = source if cast is None else cast.inputs[0]
    tensor = weight_tensor(weight)
    is_matrix = tensor is not None and tensor.dtype in WEIGHT_DTYPES and len(tensor.shape) == 2
    return weight if is_matrix and source is not None and source.dtype == ir.DataType.FLOAT else None


def _bias(node: ir.Node) -> tuple[ir.Node, ir.Value] | None:
    """The Add behind the MatMul and its float32 vector of one element per output feature, if there is one."""
    add = only_user(node.outputs[0])
    if add is None or add.op_type != "Add":
        return None
    other = next((value for value in add.inputs if value is not node.outputs[0]), None)
    if other is None or weight_tensor(other) is None or dims(other) != (dims(node.outputs[0]) or ())[-1:]:
        return None
    return (add, other) if other.dtype == ir.DataType.FLOAT else None


def _fuse(graph: ir.Graph, node: ir.Node, weight: ir.Value) -> None:
    found = _bias(node)
    result, bias = (found[0].outputs[0], found[1]) if found else (node.outputs[0], None)
    output = value_of(f"{node.name}.linear", ir.DataType.FLOAT, dims(result) or ())
    inputs = [node.inputs[0], weight, *([bias] if bias is not None else [])]
    plain = {"activation": "none"}
    graph.insert_before(node, fused_node("Linear", str(node.name), inputs, [output], plain))
    replace_value(result, output)


def _ensures(graph: ir.Graph) -> Iterable[str]:
    for node in nodes_of(graph, "MatMul"):
        if _weight(node.inputs[1]) is not None and len(dims(node.inputs[0]) or ()) == 2:
            yield f"{node.name} is a linear layer left behind"


LINEAR = GraphPass("linear", _rewrite, ensures=_ensures)
