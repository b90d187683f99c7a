"""Norms of packed rows become RmsNorm and LayerNorm, which also compute the Add of the residual stream before them.

The fused operator reads both addends once and returns the normalised rows and, where it is read, their sum.
"""

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from trtllm_lite.builder.graph import (
    attribute,
    dims,
    fused_node,
    produced_by,
    replace_value,
    site,
    value_of,
    weight_tensor,
)
from trtllm_lite.builder.passes.contract import Decision, GraphPass

# Standard operator -> fused operator.
_FUSED = {"RMSNormalization": "RmsNorm", "LayerNormalization": "LayerNorm"}


def _rewrite(graph: ir.Graph) -> Iterator[Decision]:
    for node in _norms(graph):
        obstacle = _not_convertible(node)
        if obstacle is not None:
            yield Decision(site(node), False, obstacle)
            continue
        add = _residual_add(node.inputs[0])
        _fuse(graph, node, add)
        yield Decision(site(node), add is not None, "" if add else _why_no_residual(node))


def _norms(graph: ir.Graph) -> list[ir.Node]:
    return [node for node in graph if node.op_type in _FUSED and node.domain == ""]


def _not_convertible(node: ir.Node) -> str | None:
    for name, vector in zip(("scale", "bias"), node.inputs[1:], strict=False):
        if vector is not None and (weight_tensor(vector) is None or vector.dtype != ir.DataType.FLOAT):
            return f"the {name} is not a float32 weight"
    if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        return "its means or deviations are read"
    if attribute(node, "axis", -1) != -1 or len(dims(node.inputs[0]) or ()) != 2:
        return "the norm is not over the last axis of packed rows"
    return None


def _residual_add(value: ir.Value | None) -> ir.Node | None:
    """The Add of two packed rows that makes ``value``."""
    add = produced_by(value, "Add")
    return add if add is not None and len({dims(x) for x in (*add.inputs, value)}) == 1 else None


def _why_no_residual(node: ir.Node) -> str:
    source = node.inputs[0]
    producer = None if source is None else source.producer()
    origin = "an input of the network" if producer is None else f"{producer.op_type} {producer.name}"
    return f"the norm reads {origin}, there is no residual add before it"


def _fuse(graph: ir.Graph, node: ir.Node, add: ir.Node | None) -> None:
    normalised = node.outputs[0]
    shape, path = dims(normalised) or (), str(node.name)
    outputs = {"y": value_of(f"{path}.norm", ir.DataType.FLOAT, shape)}
    inputs = dict(zip(("x", "weight", "bias"), node.inputs, strict=False))
    if add is not None:
        inputs["residual"], inputs["x"] = add.inputs
        if _is_read_elsewhere(add, node):
            outputs["sum"] = value_of(f"{path}.sum", ir.DataType.FLOAT, shape)
    attributes = {"epsilon": float(attribute(node, "epsilon", 1e-5))}
    # The node takes the place of the Add, because other readers of the sum may come before the norm.
    graph.insert_before(add or node, fused_node(_FUSED[node.op_type], path, inputs, outputs, attributes))
    replace_value(normalised, outputs["y"])
    if add is not None and "sum" in outputs:
        replace_value(add.outputs[0], outputs["sum"])


def _is_read_elsewhere(add: ir.Node, norm: ir.Node) -> bool:
    return add.outputs[0].is_graph_output() or any(use.node is not norm for use in add.outputs[0].uses())


def _ensures(graph: ir.Graph) -> Iterable[str]:
    for node in _norms(graph):
        if _not_convertible(node) is None:
            yield f"{node.name} is a norm that was not fused"


ADD_NORM = GraphPass("add_norm", _rewrite, ensures=_ensures)
