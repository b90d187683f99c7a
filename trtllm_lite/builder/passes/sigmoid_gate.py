"""Fuses rows * Sigmoid(x @ column) into SigmoidGate, by which a shared expert is weighted (network/moe.py)."""

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
    for sigmoid in nodes_of(graph, "Sigmoid"):
        mul = only_user(sigmoid.outputs[0])
        values, product = gate_of(mul)
        shape = dims(values) or ()
        if mul is None or product is None or len(shape) != 2:
            continue
        name = site(product, mul)
        output = value_of(f"{name}.sigmoid_gate", ir.DataType.FLOAT, shape)
        inputs = {"x": product.inputs[0], "weight": product.inputs[1], "values": values}
        graph.insert_before(mul, fused_node("SigmoidGate", f"{name}.sigmoid_gate", inputs, {"y": output}))
        replace_value(mul.outputs[0], output)
        yield Decision(name, True)


def gate_of(mul: ir.Node | None) -> tuple[ir.Value | None, ir.Node | None]:
    """The values that ``mul`` multiplies by the sigmoid of a product with one column, and that product; else None."""
    if mul is None or mul.op_type != "Mul":
        return None, None
    for sigmoid, values in (mul.inputs, reversed(mul.inputs)):
        made = produced_by(sigmoid, "Sigmoid")
        product = None if made is None else produced_by(made.inputs[0], "MatMul")
        if product is not None and _is_one_column(product):
            return values, product
    return None, None


def _is_one_column(product: ir.Node) -> bool:
    """Whether the product is that of packed rows and one column in float32."""
    x, weight = product.inputs
    is_column = weight_tensor(weight) is not None and (dims(weight) or ())[1:] == (1,)
    return is_column and weight is not None and weight.dtype == ir.DataType.FLOAT and len(dims(x) or ()) == 2


SIGMOID_GATE = GraphPass("sigmoid_gate", _rewrite)
