"""Adds nodes to a graph, for all passes of this folder."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from trtllm_lite.builder.graph import Dim, dims, value_of
from trtllm_lite.network.tensors import add_initializer

WIDE = ir.DataType.FLOAT
Attributes = Mapping[str, int | float | Sequence[int]]


def insert(
    graph: ir.Graph,
    before: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    name: str,
    dtype: ir.DataType,
    shape: Sequence[Dim | None],
    attributes: Attributes | None = None,
) -> ir.Value:
    """Insert a standard node in front of ``before`` and return its value; node and value have the same ``name``."""
    output = value_of(name, dtype, shape)
    graph.insert_before(before, ir.node(op_type, inputs, dict(attributes or {}), outputs=[output], name=name))
    return output


def cast(graph: ir.Graph, before: ir.Node, value: ir.Value, dtype: ir.DataType, name: str) -> ir.Value:
    """Return ``value`` as ``dtype``, by a Cast in front of ``before`` if it is of another type."""
    if value.dtype == dtype:
        return value
    return insert(graph, before, "Cast", [value], name, dtype, dims(value) or (), {"to": int(dtype)})


def continue_with(
    graph: ir.Graph,
    node: ir.Node,
    op_type: str,
    operands: Sequence[ir.Value],
    name: str,
    renamed: str,
    **attributes: int,
) -> None:
    """Put a node ``name`` of ``op_type`` between ``node`` and all readers of its result, the graph's outputs included.

    The new node computes float32 from the result of ``node`` and ``operands``. Its result takes the name of the result
    of ``node``, which is called ``renamed`` from then on.
    """
    result = node.outputs[0]
    readers, is_output = list(result.uses()), result.is_graph_output()
    behind = value_of(str(result.name), WIDE, dims(result) or ())
    result.name = renamed
    graph.insert_after(node, ir.node(op_type, [result, *operands], attributes, outputs=[behind], name=name))
    for reader in readers:
        reader.node.replace_input_with(reader.idx, behind)
    if is_output:
        graph.outputs[graph.outputs.index(result)] = behind


def cast_result(graph: ir.Graph, node: ir.Node, dtype: ir.DataType) -> None:
    """Let ``node`` compute in ``dtype``, and its readers read the result cast to float32."""
    result = node.outputs[0]
    result.type = ir.TensorType(dtype)
    renamed = f"{result.name}.{dtype.name.lower()}"
    continue_with(graph, node, "Cast", [], f"{node.name}.wide", renamed, to=int(WIDE))


def constant(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    """Return the small constant of that name, which has the same value wherever it is used."""
    return graph.initializers.get(name) or add_initializer(graph, name, ir.tensor(array, name=name))
