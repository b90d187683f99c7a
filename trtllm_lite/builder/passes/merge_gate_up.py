"""Fuses Mul(activation(gate projection), up projection) into one GatedLinear: one pass over x, no temporaries."""

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from trtllm_lite.builder.graph import (
    dims,
    fused_by,
    fused_node,
    nodes_of,
    operands,
    replace_value,
    site,
    value_of,
    weight_tensor,
)
from trtllm_lite.builder.passes.activations import OP_TYPES, activation_of, describe
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.network.tensors import add_initializer, stack, zeros
from trtllm_lite.quantize.formats import in_one_form, matrix_of


def _rewrite(graph: ir.Graph) -> Iterator[Decision]:
    for node in (node for op_type in OP_TYPES for node in nodes_of(graph, op_type)):
        for mul in [use.node for use in node.outputs[0].uses() if use.node.op_type == "Mul"]:
            gate, up = _projections(mul, node)
            name = site(*(part for part in (gate, up, mul) if part is not None))
            reason = _obstacle(node, gate, up)
            if gate is not None and up is not None and reason is None:
                _fuse(graph, mul, gate, up, name, activation_of(node) or "")
            yield Decision(name, reason is None, reason or "")


def _projections(mul: ir.Node, activation: ir.Node) -> tuple[ir.Node | None, ir.Node | None]:
    other = next((value for value in mul.inputs if value is not activation.outputs[0]), None)
    return fused_by(activation.inputs[0], "Linear"), fused_by(other, "Linear")


def _obstacle(activation: ir.Node, gate: ir.Node | None, up: ir.Node | None) -> str | None:
    if gate is None or up is None:
        return f"the {'gate' if gate is None else 'up'} factor does not come straight from a Linear"
    if activation_of(activation) is None:
        return f"the gate goes through {describe(activation)}, which no fused operator computes"
    if operands(gate)["x"] is not operands(up)["x"]:
        return "gate and up read different inputs"
    matrices = [matrix_of(operands(linear)) for linear in (gate, up)]
    return None if matrices[0].shape == matrices[1].shape else "the weights of gate and up differ in shape"


def _fuse(graph: ir.Graph, mul: ir.Node, gate: ir.Node, up: ir.Node, name: str, activation: str) -> None:
    path = f"{name}.gate_up_proj"
    matrices = in_one_form([matrix_of(operands(linear)) for linear in (gate, up)])
    weight = matrices[0].format.stack(graph, path, matrices)
    inputs = {"x": operands(gate)["x"], **weight.operands}
    biases = [weight_tensor(operands(linear).get("bias")) for linear in (gate, up)]
    if any(bias is not None for bias in biases):
        parts = [zeros([matrices[0].shape[0]]) if bias is None else bias for bias in biases]
        inputs["bias"] = add_initializer(graph, f"{path}.bias", stack(parts))
    output = value_of(f"{path}.gated", ir.DataType.FLOAT, dims(mul.outputs[0]) or ())
    graph.insert_before(mul, fused_node("GatedLinear", path, inputs, {"y": output}, {"activation": activation}))
    replace_value(mul.outputs[0], output)


def _requires(graph: ir.Graph) -> Iterable[str]:
    if any(value.name == "input_ids" for value in graph.inputs):
        yield "padding is not removed yet"


MERGE_GATE_UP = GraphPass("merge_gate_up", _rewrite, _requires)
