"""Gives every product the types that TensorRT has kernels for, without changing its result.

- A 16-bit matrix is multiplied by activations of its type.
- 4-bit integers in blocks stay 4-bit, with 16-bit scales: TensorRT dequantizes them within the product. It has no zero
  points; their contribution to a product, the sum of a block of x times an offset, is a small separate product.
- 8-bit matrices that are multiplied by 8-bit activations stay 8-bit, and the product is float32. TensorRT takes one
  constant scale for these activations; if each token has its own scale s, rows are divided by s before they are rounded
  (with the scale 1), and the product's rows are multiplied by s: (x / s) W^T s.
- All other stored forms become 16-bit matrices here, as TensorRT would make them when it builds.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
import onnx_ir as ir

from trtllm_lite.builder.graph import dims, nodes_of
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.builder.tensorrt.passes.blocks import FOUR_BITS, add_offsets, in_blocks
from trtllm_lite.builder.tensorrt.passes.rewriting import WIDE, cast, cast_result, constant, continue_with, insert
from trtllm_lite.network.dtypes import DTYPE_NAMES
from trtllm_lite.network.tensors import add_initializer, computed, extents
from trtllm_lite.quantize.activations import number, recognise
from trtllm_lite.quantize.formats import FORMATS, StoredMatrix
from trtllm_lite.quantize.formats.format import made_by

NAME = "typed_products"
_BYTES = (ir.DataType.INT8, ir.DataType.FLOAT8E4M3FN)


def typed_products(narrow: ir.DataType) -> GraphPass:
    """The pass for a network whose 16-bit type is ``narrow``."""
    return GraphPass(NAME, partial(_rewrite, narrow=narrow))


def _rewrite(graph: ir.Graph, narrow: ir.DataType) -> Iterator[Decision]:
    for node in nodes_of(graph, "MatMul"):
        transpose = made_by(node.inputs[1], "Transpose")
        matrix = None if transpose is None else _stored(transpose.inputs[0])
        if transpose is not None and matrix is not None:
            yield _typed(graph, node, transpose, matrix, narrow)
    for node in nodes_of(graph, "Gather"):
        table = _stored(node.inputs[0])
        if table is not None and table.format.name != "plain":
            yield _look_up_narrow(graph, node, table, narrow)
    _divide_rows(graph)


def _stored(value: ir.Value | None) -> StoredMatrix | None:
    return next((found for known in FORMATS if (found := known.recognise(value)) is not None), None)


def _typed(graph: ir.Graph, node: ir.Node, transpose: ir.Node, matrix: StoredMatrix, narrow: ir.DataType) -> Decision:
    """Give the product ``node`` its types; returns whether the matrix stays as it is stored."""
    is_rounded = recognise(node.inputs[0]) is not None
    blocks = extents(matrix.tensor("weight_scale"))[1] if "weight_scale" in matrix.operands else 0
    weight = matrix.operands["weight"]
    if is_rounded and weight.dtype in _BYTES and blocks == 1 and "weight_offset" not in matrix.operands:
        return Decision(str(node.name), True)
    decision = Decision(str(node.name), True)
    if matrix.format.name == "plain":
        operand = cast(graph, transpose, weight, narrow, f"{weight.name}.narrow")
    elif weight.dtype in FOUR_BITS and blocks > 1 and not is_rounded:
        add_offsets(graph, node, matrix, narrow)
        operand = in_blocks(graph, transpose, matrix, narrow)
    else:
        operand, decision = _expanded(graph, matrix, narrow), _expansion(str(node.name), matrix, narrow)
    transpose.replace_input_with(0, operand)
    transpose.outputs[0].type = ir.TensorType(narrow)
    x = node.inputs[0]
    assert x is not None
    node.replace_input_with(0, cast(graph, node, x, narrow, f"{node.name}.x"))
    cast_result(graph, node, narrow)
    return decision


def _look_up_narrow(graph: ir.Graph, node: ir.Node, table: StoredMatrix, narrow: ir.DataType) -> Decision:
    node.replace_input_with(0, _expanded(graph, table, narrow))
    cast_result(graph, node, narrow)
    return _expansion(str(node.name), table, narrow)


def _expanded(graph: ir.Graph, matrix: StoredMatrix, narrow: ir.DataType) -> ir.Value:
    """Dequantize ``matrix`` to 16 bits: one weight for all products and look-ups of ``matrix``."""
    name = f"{DTYPE_NAMES[narrow]}.{matrix.operands['weight'].name}"
    if name in graph.initializers:
        return graph.initializers[name]
    tensors = {operand: matrix.tensor(operand) for operand in matrix.operands}

    def load() -> np.ndarray:
        wide = matrix.format.dequantize({operand: tensor.numpy() for operand, tensor in tensors.items()})
        return wide.astype(narrow.numpy())

    return add_initializer(graph, name, computed(load, narrow, matrix.shape))


def _expansion(site: str, matrix: StoredMatrix, narrow: ir.DataType) -> Decision:
    stored = matrix.operands["weight"].dtype
    assert stored is not None
    form = f"{DTYPE_NAMES[stored]} becomes {DTYPE_NAMES[narrow]}"
    reason = "TensorRT multiplies 8-bit matrices by 8-bit rows only, and 4-bit blocks by 16-bit rows"
    return Decision(site, False, f"{form}: {reason}")


def _divide_rows(graph: ir.Graph) -> None:
    """Round rows that have scales of their own with the scale 1, and multiply by these scales after the products."""
    for quantize in nodes_of(graph, "QuantizeLinear"):
        x, scale = quantize.inputs[:2]
        if x is None or scale is None or scale.is_initializer() or number(scale) is not None:
            continue
        dequantize = next(iter({use.node for use in quantize.outputs[0].uses()}))
        divided = insert(graph, quantize, "Div", [x, scale], f"{quantize.name}.divided", WIDE, dims(x) or ())
        one = constant(graph, "rows.scale", np.array(1, np.float32))
        quantize.replace_input_with(0, divided)
        for node in (quantize, dequantize):
            node.replace_input_with(1, one)
            for name in ("axis", "block_size"):
                node.attributes.pop(name, None)
        for use in list(dequantize.outputs[0].uses()):
            _multiply_rows(graph, use.node, scale)


def _multiply_rows(graph: ir.Graph, reader: ir.Node, scale: ir.Value) -> None:
    """Let the readers of the product after ``reader`` (itself, or a Cast in front of it) read its scaled rows."""
    product = reader if reader.op_type == "MatMul" else next(iter(reader.outputs[0].uses())).node
    after = product
    if after.outputs[0].dtype != WIDE:
        after = next(iter(after.outputs[0].uses())).node
    continue_with(graph, after, "Mul", [scale], f"{product.name}.rescaled", f"{after.outputs[0].name}.unscaled")


__all__ = ["NAME", "typed_products"]
