"""Turns activations that the network rounds to 8 bits into QuantizeRows, whose rows and scales the products read.

The pass runs after products are merged, and gives each product its own QuantizeRows, because one product may run on
fewer rows than another.
"""

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from trtllm_lite.builder.graph import attribute, dims, fused_node, nodes_of, operands, replace_value, site, value_of
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.network.tensors import add_initializer, lazy
from trtllm_lite.plugins.schema import DOMAIN
from trtllm_lite.quantize.activations import QuantizedRows, recognise


def _rewrite(graph: ir.Graph) -> Iterator[Decision]:
    for node in _products(graph):
        rows = recognise(operands(node)["x"])
        if rows is not None:
            _fuse(graph, node, rows)
            yield Decision(site(node), True)


def _products(graph: ir.Graph) -> list[ir.Node]:
    return [node for op_type in ("Linear", "GatedLinear") for node in nodes_of(graph, op_type, DOMAIN)]


def _fuse(graph: ir.Graph, node: ir.Node, rows: QuantizedRows) -> None:
    quantize = _quantize(graph, node, rows)
    inputs = {**operands(node), "x": quantize.outputs[0], "x_scale": quantize.outputs[1]}
    y = value_of(f"{node.name}.of_quantized_rows", ir.DataType.FLOAT, dims(node.outputs[0]) or ())
    attributes = {"activation": attribute(node, "activation")}
    graph.insert_before(node, fused_node(node.op_type, str(node.name), inputs, {"y": y}, attributes))
    replace_value(node.outputs[0], y)


def _quantize(graph: ir.Graph, product: ir.Node, rows: QuantizedRows) -> ir.Node:
    name, shape = f"{product.name}.quantize", dims(rows.source) or ()
    inputs = {"x": rows.source}
    if rows.scale is not None:
        inputs["scale"] = _vector(graph, f"{name}.scale", rows.scale)
    outputs = {
        "y": value_of(f"{name}.rows", ir.DataType.FLOAT, shape),
        "y_scale": value_of(f"{name}.row_scales", ir.DataType.FLOAT, shape[:1]),
    }
    attributes: dict[str, int | float | str] = {"to": rows.to}
    attributes |= {"scale_factor": rows.scale_factor, "min_scale": rows.min_scale}
    node = fused_node("QuantizeRows", name, inputs, outputs, attributes)
    graph.insert_before(product, node)
    return node


def _vector(graph: ir.Graph, name: str, scalar: ir.Value) -> ir.Value:
    """A vector with ``scalar`` as its only element."""
    tensor = scalar.const_value
    assert tensor is not None
    return add_initializer(graph, name, lazy(lambda: tensor.numpy().reshape(1), ir.DataType.FLOAT, (1,), [tensor]))


def _ensures(graph: ir.Graph) -> Iterable[str]:
    for node in _products(graph):
        if recognise(operands(node)["x"]) is not None:
            yield f"{node.name} reads rows that the network still rounds in standard operators"


QUANTIZE_ROWS = GraphPass("quantize_rows", _rewrite, ensures=_ensures)
