"""Fuses Cos and Sin of position * inv_freq, with their common factor, into one RotaryTable that every layer reads."""

from collections.abc import Iterator

import onnx_ir as ir

from trtllm_lite.builder.graph import (
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
from trtllm_lite.builder.passes.remove_padding import NUM_TOKENS, POSITION_IDS


def _rewrite(graph: ir.Graph) -> Iterator[Decision]:
    for cos in nodes_of(graph, "Cos"):
        sin = next((node for node in nodes_of(graph, "Sin") if node.inputs[0] is cos.inputs[0]), None)
        if sin is None:
            yield Decision(site(cos), False, "no Sin reads the same angles")
            continue
        reason = _obstacle(cos, sin)
        if reason is None:
            _fuse(graph, cos, sin)
        yield Decision(site(cos, sin), reason is None, reason or "")


def _frequencies(angle: ir.Value | None) -> ir.Value | None:
    """``inv_freq`` if ``angle`` is position_ids[:, None] * inv_freq in float32."""
    mul = produced_by(angle, "Mul")
    if mul is None:
        return None
    for column, frequencies in (mul.inputs, reversed(mul.inputs)):
        unsqueeze = produced_by(column, "Unsqueeze")
        if unsqueeze is not None and weight_tensor(frequencies) is not None and _is_position(unsqueeze.inputs[0]):
            return frequencies
    return None


def _is_position(value: ir.Value | None) -> bool:
    while (cast := produced_by(value, "Cast")) is not None:
        value = cast.inputs[0]
    return value is not None and value.is_graph_input() and value.name == POSITION_IDS


def _scaled(node: ir.Node) -> tuple[ir.Value, float]:
    """The table and its factor: the output of a Mul by a scalar, if that is the table's only reader."""
    mul = only_user(node.outputs[0])
    if mul is not None and mul.op_type == "Mul":
        other = next(value for value in mul.inputs if value is not node.outputs[0])
        factor = scalar_constant(other)
        if factor is not None:
            return mul.outputs[0], float(factor)
    return node.outputs[0], 1.0


def _obstacle(cos: ir.Node, sin: ir.Node) -> str | None:
    frequencies = _frequencies(cos.inputs[0])
    if frequencies is None or frequencies.dtype != ir.DataType.FLOAT or len(dims(frequencies) or ()) != 1:
        return "the angles are not position_ids times a float32 vector of frequencies"
    if _scaled(cos)[1] != _scaled(sin)[1]:
        return "cosines and sines are scaled differently"
    return None


def _fuse(graph: ir.Graph, cos: ir.Node, sin: ir.Node) -> None:
    frequencies = _frequencies(cos.inputs[0])
    positions = next(value for value in graph.inputs if value.name == POSITION_IDS)
    half = (dims(frequencies) or (0,))[0]
    name = site(cos, sin) or "rotary"
    # The table is named after its nodes, because a network may have several tables at one site.
    outputs = {
        kind: value_of(f"{node.name}.table", ir.DataType.FLOAT, [NUM_TOKENS, half or 0])
        for kind, node in (("cos", cos), ("sin", sin))
    }
    inputs = {"position_ids": positions, "inv_freq": frequencies}
    scale = {"scale": _scaled(cos)[1]}
    first = next(node for node in graph if node in (cos, sin))
    graph.insert_before(first, fused_node("RotaryTable", name, inputs, outputs, scale))
    for node, output in zip((cos, sin), outputs.values(), strict=True):
        replace_value(_scaled(node)[0], output)


ROTARY_TABLE = GraphPass("rotary_table", _rewrite)
