"""Stores matrices of 4-bit integers in blocks as TensorRT takes them: signed, with 16-bit scales and no zero points.

In each block a row of the matrix is scale * element + offset. Hence x W^T is the product with scale * element, plus a
product of K / block columns: the sum of each block of x times the block's offset.
"""

import numpy as np
import onnx_ir as ir

from trtllm_lite.builder.graph import dims
from trtllm_lite.builder.tensorrt.passes.rewriting import WIDE, cast, constant, continue_with, insert
from trtllm_lite.network.dtypes import NUMPY
from trtllm_lite.network.tensors import add_initializer, computed, extents
from trtllm_lite.quantize.formats import StoredMatrix

FOUR_BITS = (ir.DataType.INT4, ir.DataType.UINT4)
_BIAS = 8  # subtracted from unsigned elements to make them signed


def in_blocks(graph: ir.Graph, before: ir.Node, matrix: StoredMatrix, narrow: ir.DataType) -> ir.Value:
    """Return scale * element [out, in] in the type ``narrow``, by a DequantizeLinear in front of ``before``."""
    name = str(matrix.operands["weight"].name)
    weight, scale = matrix.tensor("weight"), matrix.tensor("weight_scale")
    (rows, depth), (_, blocks) = extents(weight), extents(scale)

    def signed() -> np.ndarray:
        elements = weight.numpy().astype(np.int8)
        return (elements - _bias(matrix)).astype(NUMPY["int4"])

    def rounded() -> np.ndarray:
        return scale.numpy().astype(np.float32).astype(narrow.numpy())

    tensors = {
        "int4": computed(signed, ir.DataType.INT4, (rows, depth)),
        "scales": computed(rounded, narrow, (rows, blocks)),
    }
    operands = [
        graph.initializers.get(f"{name}.{what}") or add_initializer(graph, f"{name}.{what}", tensor)
        for what, tensor in tensors.items()
    ]
    attributes = {"axis": 1, "block_size": depth // blocks}
    return insert(graph, before, "DequantizeLinear", operands, f"{before.name}.w", narrow, [rows, depth], attributes)


def add_offsets(graph: ir.Graph, product: ir.Node, matrix: StoredMatrix, narrow: ir.DataType) -> None:
    """Add the contribution of the offsets of ``matrix`` to ``product``, float32, for all of its readers."""
    scale = matrix.tensor("weight_scale")
    offset = matrix.tensor("weight_offset") if "weight_offset" in matrix.operands else None
    bias = _bias(matrix)
    if offset is None and not bias:
        return
    rows, blocks = extents(scale)

    def load() -> np.ndarray:
        added = bias * scale.numpy().astype(np.float32)
        if offset is not None:
            added = added + offset.numpy().astype(np.float32).reshape(rows, blocks)
        return np.ascontiguousarray(added.T.astype(narrow.numpy()))

    name = str(product.name)
    offsets = add_initializer(graph, f"{name}.offsets", computed(load, narrow, (blocks, rows)))
    x = product.inputs[0]
    assert x is not None
    sums = cast(graph, product, _block_sums(graph, product, x, blocks), narrow, f"{name}.block_sums")
    shape = dims(product.outputs[0]) or ()
    added = insert(graph, product, "MatMul", [sums, offsets], f"{name}.added", narrow, shape)
    wide = cast(graph, product, added, WIDE, f"{name}.added.wide")
    continue_with(graph, product, "Add", [wide], f"{name}.with_offsets", f"{name}.without_offsets")


def _bias(matrix: StoredMatrix) -> int:
    return _BIAS if matrix.operands["weight"].dtype == ir.DataType.UINT4 else 0


def _block_sums(graph: ir.Graph, before: ir.Node, x: ir.Value, blocks: int) -> ir.Value:
    """The sums of ``x`` [..., in] over each block, float32 [..., blocks], made once for all readers of ``x``."""
    name = f"{x.name}.sums_of_{blocks}"
    made = next((use.node for use in x.uses() if use.node.name == f"{name}.cut"), None)
    if made is not None:
        return next(iter(made.outputs[0].uses())).node.outputs[0]
    leading = list(dims(x) or ())[:-1]
    extents_of_cut = np.array([0] * len(leading) + [blocks, -1], np.int64)
    cut_shape = constant(graph, f"blocks.{len(leading)}.{blocks}", extents_of_cut)
    axis = constant(graph, "blocks.axis", np.array([-1], np.int64))
    size = (dims(x) or (0,))[-1]
    assert isinstance(size, int)
    cut = insert(graph, before, "Reshape", [x, cut_shape], f"{name}.cut", WIDE, [*leading, blocks, size // blocks])
    return insert(graph, before, "ReduceSum", [cut, axis], name, WIDE, [*leading, blocks], {"keepdims": 0})
