"""Fuses tanh(alpha * x) * weight + bias over packed rows into DynamicTanh."""

from collections.abc import Iterator

import onnx_ir as ir

from trtllm_lite.builder.graph import (
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


def _rewrite(graph: ir.Graph) -> Iterator[Decision]:
    for tanh in nodes_of(graph, "Tanh"):
        scaled, weighted = produced_by(tanh.inputs[0], "Mul"), only_user(tanh.outputs[0])
        added = None if weighted is None or weighted.op_type != "Mul" else only_user(weighted.outputs[0])
        if scaled is None or weighted is None or added is None or added.op_type != "Add":
            continue
        name = site(scaled, tanh, weighted, added)
        x, alpha = scaled.inputs
        weight, bias = weighted.inputs[1], added.inputs[1]
        if any(weight_tensor(value) is None for value in (alpha, weight, bias)) or len(dims(x) or ()) != 2:
            yield Decision(name, False, "its factors are not weights, or it is not applied to rows of tokens")
            continue
        y = value_of(f"{name}.dynamic_tanh", ir.DataType.FLOAT, dims(x) or ())
        inputs = {"x": x, "alpha": alpha, "weight": weight, "bias": bias}
        graph.insert_before(added, fused_node("DynamicTanh", f"{name}.dynamic_tanh", inputs, {"y": y}))
        replace_value(added.outputs[0], y)
        yield Decision(name, True)


DYNAMIC_TANH = GraphPass("dynamic_tanh", _rewrite)
