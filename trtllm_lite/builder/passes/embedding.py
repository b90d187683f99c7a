"""Fuses Gather(weight, token ids), the dequantization or cast of its rows, and a Mul by a constant into Embedding."""

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
    scalar_constant,
    site,
    value_of,
    weight_tensor,
)
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.builder.passes.remove_padding import TOKEN_IDS
from trtllm_lite.quantize.formats import FORMATS, Plain, StoredMatrix


def _rewrite(graph: ir.Graph) -> Iterator[Decision]:
    for node in nodes_of(graph, "Gather"):
        table = _table(node.inputs[0])
        if table is None or not _reads_token_ids(node):
            continue
        reason = _obstacle(node, table)
        if reason is None:
            _fuse(graph, node, table)
        yield Decision(site(node), reason is None, reason or "")


def _table(value: ir.Value | None) -> StoredMatrix | None:
    """The table that rows are looked up in: the stored weight if it is plain, else the dequantized weight."""
    if weight_tensor(value) is not None and value is not None:
        return StoredMatrix(Plain(), {"weight": value})
    return next((found for known in FORMATS if known.name != Plain.name and (found := known.recognise(value))), None)


def _reads_token_ids(node: ir.Node) -> bool:
    cast = produced_by(node.inputs[1], "Cast")
    return cast is not None and cast.inputs[0] is not None and cast.inputs[0].name == TOKEN_IDS


def _result(node: ir.Node) -> ir.Value:
    """The looked-up rows in float32: the output of the Cast if the table is stored narrower."""
    cast = only_user(node.outputs[0])
    return cast.outputs[0] if cast is not None and cast.op_type == "Cast" else node.outputs[0]


def _scaled(rows: ir.Value) -> tuple[ir.Value, float]:
    """The rows after a Mul by a constant, if it is the only reader of ``rows``, and the constant."""
    mul = only_user(rows)
    if mul is None or mul.op_type != "Mul" or mul.outputs[0].dtype != ir.DataType.FLOAT:
        return rows, 1.0
    factors = [scalar_constant(value) for value in mul.inputs if value is not rows]
    return (mul.outputs[0], float(factors[0])) if len(factors) == 1 and factors[0] is not None else (rows, 1.0)


def _obstacle(node: ir.Node, matrix: StoredMatrix) -> str | None:
    table = matrix.tensor("weight")
    if table.dtype not in matrix.format.weight_dtypes or len(table.shape) != 2 or attribute(node, "axis", 0) != 0:
        return f"the table is {table.dtype} {list(table.shape)}, expected a float matrix gathered along its rows"
    if _result(node).dtype != ir.DataType.FLOAT:
        return "the looked-up rows are not cast to float32 right away"
    return None


def _fuse(graph: ir.Graph, node: ir.Node, table: StoredMatrix) -> None:
    cast = produced_by(node.inputs[1], "Cast")
    result, scale = _scaled(_result(node))
    output = value_of(f"{node.name}.embedding", ir.DataType.FLOAT, dims(result) or ())
    token_ids = None if cast is None else cast.inputs[0]
    inputs = {"token_ids": token_ids, **table.within(graph)}
    graph.insert_before(node, fused_node("Embedding", str(node.name), inputs, {"y": output}, {"scale": scale}))
    replace_value(result, output)


EMBEDDING = GraphPass("embedding", _rewrite)
