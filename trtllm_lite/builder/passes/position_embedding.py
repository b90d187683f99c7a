"""Add(x, Gather(position table, position_ids)) becomes one PositionEmbedding: learned absolute positions."""

from collections.abc import Iterator

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
from trtllm_lite.builder.passes.remove_padding import NUM_TOKENS, POSITION_IDS
from trtllm_lite.network.dtypes import PLAIN_ONNX


def _rewrite(graph: ir.Graph) -> Iterator[Decision]:
    for gather in nodes_of(graph, "Gather"):
        positions = _positions(gather)
        if positions is None:
            continue
        reason = _obstacle(gather)
        if reason is None:
            _fuse(graph, gather, positions)
        yield Decision(site(gather), reason is None, reason or "")


def _positions(gather: ir.Node) -> ir.Value | None:
    """The input position_ids, if ``gather`` looks up rows of a weight by it."""
    cast = produced_by(gather.inputs[1], "Cast")
    source = None if cast is None else cast.inputs[0]
    is_position = source is not None and source.is_graph_input() and source.name == POSITION_IDS
    return source if is_position and weight_tensor(gather.inputs[0]) is not None else None


def _rows(gather: ir.Node) -> ir.Value:
    """The looked-up rows: the output of the Cast if the table is stored narrower than float32."""
    cast = only_user(gather.outputs[0])
    return cast.outputs[0] if cast is not None and cast.op_type == "Cast" else gather.outputs[0]


def _add(gather: ir.Node) -> tuple[ir.Node, ir.Value] | None:
    """The Add that is the only reader of the rows, and its other addend."""
    rows = _rows(gather)
    add = only_user(rows)
    if add is None or add.op_type != "Add" or add.inputs[0] is add.inputs[1]:
        return None
    other = next(value for value in add.inputs if value is not rows)
    return None if other is None else (add, other)


def _obstacle(gather: ir.Node) -> str | None:
    table = weight_tensor(gather.inputs[0])
    assert table is not None
    if table.dtype not in PLAIN_ONNX or len(table.shape) != 2 or attribute(gather, "axis", 0) != 0:
        return f"the table is {table.dtype} {list(table.shape)}, expected a float matrix gathered along its rows"
    found = _add(gather)
    if found is None:
        return "its rows are read by something else than one Add"
    expected = (NUM_TOKENS, table.shape[1])
    if _rows(gather).dtype != ir.DataType.FLOAT or dims(found[1]) != expected:
        return f"its rows are not added to float32 rows of the shape {expected}"
    return None


def _fuse(graph: ir.Graph, gather: ir.Node, positions: ir.Value) -> None:
    found = _add(gather)
    assert found is not None
    add, x = found
    output = value_of(f"{gather.name}.position_embedding", ir.DataType.FLOAT, dims(add.outputs[0]) or ())
    inputs = {"x": x, "position_ids": positions, "weight": gather.inputs[0]}
    graph.insert_before(add, fused_node("PositionEmbedding", str(gather.name), inputs, {"y": output}))
    replace_value(add.outputs[0], output)


POSITION_EMBEDDING = GraphPass("position_embedding", _rewrite)
