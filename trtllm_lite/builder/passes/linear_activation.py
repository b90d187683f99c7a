"""Moves an activation into the Linear before it, if it is the only reader, so that wide rows are written once.

The pass runs after merge_gate_up, which takes the activations of gates.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from trtllm_lite.builder.graph import (
    attribute,
    dims,
    fused_by,
    fused_node,
    nodes_of,
    operands,
    replace_value,
    site,
    value_of,
)
from trtllm_lite.builder.passes.activations import OP_TYPES, activation_of, describe, squared_relu_of
from trtllm_lite.builder.passes.contract import Decision, GraphPass


@dataclass(frozen=True)
class _Activation:
    """The function that ``nodes`` apply to ``x``, by its name in schemas; None if they do not have it."""

    name: str | None
    x: ir.Value | None
    nodes: tuple[ir.Node, ...]

    @property
    def last(self) -> ir.Node:
        """The node that makes the result."""
        return self.nodes[-1]


def _rewrite(graph: ir.Graph) -> Iterator[Decision]:
    for found in _activations(graph):
        reason = _obstacle(found)
        if reason is None:
            _fuse(graph, found)
        yield Decision(site(found.last), reason is None, reason or "")


def _activations(graph: ir.Graph) -> list[_Activation]:
    named = [
        _Activation(activation_of(node), node.inputs[0], (node,))
        for op_type in OP_TYPES
        for node in nodes_of(graph, op_type)
    ]
    squares = [squared for node in nodes_of(graph, "Mul") if (squared := squared_relu_of(node)) is not None]
    return [*named, *(_Activation("relu2", x, nodes) for x, nodes in squares)]


def _obstacle(found: _Activation) -> str | None:
    linear = fused_by(found.x, "Linear")
    if linear is None:
        return "its input does not come straight from a Linear"
    rows = linear.outputs[0]
    if rows.is_graph_output() or {use.node for use in rows.uses()} != set(found.nodes):
        return f"it is not the only reader of {linear.name}"
    if attribute(linear, "activation") != "none":
        return f"{linear.name} has an activation already"
    return None if found.name is not None else f"no fused operator computes {describe(found.last)}"


def _fuse(graph: ir.Graph, found: _Activation) -> None:
    linear = fused_by(found.x, "Linear")
    assert linear is not None
    result = found.last.outputs[0]
    output = value_of(f"{found.last.name}.linear", ir.DataType.FLOAT, dims(result) or ())
    attributes = {"activation": found.name or ""}
    graph.insert_before(linear, fused_node("Linear", str(linear.name), operands(linear), {"y": output}, attributes))
    replace_value(result, output)


def _ensures(graph: ir.Graph) -> Iterable[str]:
    for found in _activations(graph):
        if _obstacle(found) is None:
            yield f"{found.last.name} is an activation that was not fused"


LINEAR_ACTIVATION = GraphPass("linear_activation", _rewrite, ensures=_ensures)
