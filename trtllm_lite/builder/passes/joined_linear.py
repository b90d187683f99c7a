"""Joins Linears of the same rows into one Linear, with the weight rows of one after those of the other."""

from collections.abc import Sequence

import onnx_ir as ir

from trtllm_lite.builder.graph import dims, features_of, fused_node, operands, value_of, weight_tensor
from trtllm_lite.network.tensors import add_initializer, concatenate, zeros
from trtllm_lite.quantize.formats import in_one_form, matrix_of


def insert_joined(graph: ir.Graph, linears: Sequence[ir.Node], path: str) -> ir.Value:
    """Insert a Linear called ``path`` before all ``linears``; returns its rows, which have their results side by
    side."""
    matrices = in_one_form([matrix_of(operands(linear)) for linear in linears])
    inputs = {"x": operands(linears[0])["x"], **matrices[0].format.concatenate(graph, path, matrices).operands}
    sizes = [features_of(linear.outputs[0]) for linear in linears]
    biases = [weight_tensor(operands(linear).get("bias")) for linear in linears]
    if any(bias is not None for bias in biases):
        parts = [zeros([size]) if bias is None else bias for bias, size in zip(biases, sizes, strict=True)]
        inputs["bias"] = add_initializer(graph, f"{path}.bias", concatenate(parts))
    rows = (dims(linears[0].outputs[0]) or ("",))[0] or ""
    joined = value_of(f"{path}.linear", ir.DataType.FLOAT, [rows, sum(sizes)])
    first = next(node for node in graph if node in linears)
    graph.insert_before(first, fused_node("Linear", path, inputs, {"y": joined}, {"activation": "none"}))
    return joined
