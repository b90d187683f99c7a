"""Moves an activation into the Linear before it, if it is the only reader, so that wide rows are written once.

The pass runs after merge_gate_up, which takes the activations of gates.
"""

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from trtllm_lite.builder.graph import (
    attribute,
    dims,
    fused_by,
    fused_node,
    nodes_of,
    only_user,
    operands,
    replace_value,
    site,
    value_of,
)
from trtllm_lite.builder.passes.activations import OP_TYPES, activation_of, describe
from trtllm_lite.builder.passes.contract import Decision, GraphPass


def _rewrite(graph: ir.Graph) -> Iterator[Decision]:
    for node in _activations(graph):
        reason = _obstacle(node)
        if reason is None:
            _fuse(graph, node)
        yield Decision(site(node), reason is None, reason or "")


def _activations(graph: ir.Graph) -> list[ir.Node]:
    return [node for op_type in OP_TYPES for node in nodes_of(graph, op_type)]


def _obstacle(node: ir.Node) -> str | None:
    linear = fused_by(node.inputs[0], "Linear")
    if linear is None:
        return "its input does not come straight from a Linear"
    if only_user(linear.outputs[0]) is not node:
        return f"it is not the only reader of {linear.name}"
    if attribute(linear, "activation") != "none":
        return f"{linear.name} has an activation already"
    return None if activation_of(node) is not None else f"no fused operator computes {describe(node)}"


def _fuse(graph: ir.Graph, node: ir.Node) -> None:
    linear = fused_by(node.inputs[0], "Linear")
    assert linear is not None
    result = node.outputs[0]
    output = value_of(f"{node.name}.linear", ir.DataType.FLOAT, dims(result) or ())
    attributes = {"activation": activation_of(node) or ""}
    graph.insert_before(linear, fused_node("Linear", str(linear.name), operands(linear), {"y": output}, attributes))
    replace_value(result, output)


def _ensures(graph: ir.Graph) -> Iterable[str]:
    for node in _activations(graph):
        if _obstacle(node) is None:
            yield f"{node.name} is an activation that was not fused"


LINEAR_ACTIVATION = GraphPass("linear_activation", _rewrite, ensures=_ensures)
