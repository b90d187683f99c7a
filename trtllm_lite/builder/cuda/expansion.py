"""Expands stored weights that no GPU kernel reads to 16-bit matrices; `build` and the engine list them and say why.

Where kernels read scales of blocks, a row's one scale is repeated for each of its blocks.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trtllm_lite.builder.cuda.ops import Links, Op, ops_of, static_dims
from trtllm_lite.builder.graph import weight_tensor
from trtllm_lite.engine.manifest import Tactic
from trtllm_lite.network.dtypes import DTYPE_NAMES, NUMPY, ONNX
from trtllm_lite.network.tensors import add_initializer, computed, extents
from trtllm_lite.plugins.cuda.weight_form import BLOCK_FORMS, BLOCK_SIZES, has_blocks
from trtllm_lite.plugins.packing import NUMBER_ROWS
from trtllm_lite.plugins.scaled_weight import scaled

_INTEGERS_OF_4_BITS = (ONNX["int4"], ONNX["uint4"])
_FLOATS = ("float8_e4m3fn", "float4_e2m1fn")
_GROUPED = ("GroupedGatedLinear", "GroupedLinear")
_READ = "int8, 4-bit integers, float8_e4m3fn and float4_e2m1fn in blocks"
_NUMBERS = ("weight_scale", "weight_offset")
_ROWS_AT_ONCE = 4096  # rows that are expanded in float64 at a time
_ROW_RUN = 8  # weights of products have a multiple of this many rows


@dataclass(frozen=True)
class Expanded:
    """The operators of a network, some with replaced weights, and an entry for each replaced weight."""

    ops: list[Op]
    expansions: tuple[Tactic, ...]


def expand_weights(graph: ir.Graph, dtype: str) -> Expanded:
    """The operators of ``graph``, all fused, with matrices of ``dtype`` in place of weights that no kernel reads.

    Kernels read int8, 4-bit integers, float8_e4m3fn and float4_e2m1fn with one scale for each block of a row, and int8
    matrices with one scale for each row. Weights that are multiplied by rounded activations stay as they are. The
    float32 weight of a Router becomes two matrices of ``dtype``, one after the other, whose sum is nearly the weight.
    """
    ops = ops_of(graph)
    links, rewritten = Links(ops), []
    expansions: dict[str, Tactic] = {}
    for op in ops:
        if op.kind == "Router":
            rewritten.append(op.with_inputs(weight=_two_terms(graph, op.inputs["weight"], dtype)))
            continue
        reason = _reason(op, links)
        if reason is None:
            rewritten.append(_in_blocks(graph, op, links))
            continue
        expanded = _expanded(graph, op, dtype)
        name = str(op.inputs["weight"].name)
        expansions[name] = Tactic(name, f"{_form(op)} becomes {dtype}", reason)
        rewritten.append(op.without(*_NUMBERS).with_inputs(weight=expanded))
    return Expanded(rewritten, tuple(expansions.values()))


def _two_terms(graph: ir.Graph, weight: ir.Value, dtype: str) -> ir.Value:
    """Split a float32 weight [in, out] into rows of ``dtype``, two for each column, whose sum is nearly the column.

    First come the rounded columns, then their rounding errors, then rows of zeros up to a multiple of 8.
    """
    tensor, name = weight_tensor(weight), f"{dtype}.{weight.name}"
    assert tensor is not None
    in_features, out_features = extents(tensor)

    def load() -> np.ndarray:
        columns, rows = np.ascontiguousarray(tensor.numpy().T), np.zeros(shape, NUMPY[dtype])
        rows[:out_features] = columns
        rows[out_features : 2 * out_features] = columns - rows[:out_features].astype(np.float32)
        return rows

    if name in graph.initializers:
        return graph.initializers[name]
    shape = (-(-2 * out_features // _ROW_RUN) * _ROW_RUN, in_features)
    return add_initializer(graph, name, computed(load, ONNX[dtype], shape))


def _reason(op: Op, links: Links) -> str | None:
    """Return why the weight of ``op`` has to be expanded; None if kernels read it, or if there is no weight."""
    if "weight_scale" not in op.inputs:
        return None
    if op.kind == "Embedding":
        return "GPU kernels look up 16-bit rows"
    if op.kind in _GROUPED:
        return None if _block_size(op) else f"GPU kernels read experts as 16-bit matrices, {_READ}"
    has_4_bits = op.inputs["weight"].dtype in _INTEGERS_OF_4_BITS  # never expanded: a wrong block size is an error
    if _is_rounded(op, links) or _has_int8_rows(op) or has_4_bits or _block_size(op):
        return None
    return f"GPU kernels multiply 16-bit rows by {_READ}, and by int8 with a scale for each row"


def _is_rounded(op: Op, links: Links) -> bool:
    """Return whether the activations of a product are 8-bit."""
    return "x_scale" in op.inputs or links.producer(op.inputs["x"], "QuantizeRows") is not None


def _has_row_scales(op: Op) -> bool:
    return static_dims(op.inputs["weight_scale"])[-1] == 1 and "weight_offset" not in op.inputs


def _has_int8_rows(op: Op) -> bool:
    """Return whether the weight is a matrix of int8 with a scale for each row, which kernels read directly."""
    return op.inputs["weight"].dtype == ONNX["int8"] and _has_row_scales(op) and op.kind not in _GROUPED


def _block_size(op: Op) -> int | None:
    """The block size at which kernels read the weight of a product with 16-bit rows; None if they cannot read it."""
    weight, count = op.inputs["weight"], static_dims(op.inputs["weight_scale"])[-1]
    assert weight.dtype is not None
    *_, out_features, in_features = static_dims(weight)
    dtype, size = DTYPE_NAMES[weight.dtype], in_features // count
    form = BLOCK_FORMS.get(dtype)
    if form is None or in_features % form.depth or out_features % NUMBER_ROWS:
        return None
    if "weight_offset" in op.inputs and dtype in _FLOATS:
        return None
    if _has_row_scales(op) and not (size in BLOCK_SIZES and has_blocks(dtype, None, count)):
        size = next((size for size in reversed(BLOCK_SIZES) if size < in_features and in_features % size == 0), 0)
    return size if size in BLOCK_SIZES else None


def _in_blocks(graph: ir.Graph, op: Op, links: Links) -> Op:
    """Return ``op`` with the one scale of each weight row repeated for each block, if kernels read scales of blocks."""
    if "weight_scale" not in op.inputs or _is_rounded(op, links) or not _has_row_scales(op) or _has_int8_rows(op):
        return op
    size, scale, in_features = _block_size(op), op.inputs["weight_scale"], static_dims(op.inputs["weight"])[-1]
    if size in (None, in_features):
        return op
    name, tensor = f"blocks.{scale.name}", weight_tensor(scale)
    assert tensor is not None
    assert size is not None
    count = in_features // size
    if name not in graph.initializers:
        shape = (*extents(tensor)[:-1], count)
        add_initializer(graph, name, computed(lambda: np.repeat(tensor.numpy(), count, axis=-1), tensor.dtype, shape))
    return op.with_inputs(weight_scale=graph.initializers[name])


def _form(op: Op) -> str:
    """Describe the stored form of a weight in words."""
    weight, blocks = op.inputs["weight"], static_dims(op.inputs["weight_scale"])[-1]
    assert weight.dtype is not None
    where = "with a scale for each row" if blocks == 1 else f"in blocks of {static_dims(weight)[-1] // blocks}"
    return f"{DTYPE_NAMES[weight.dtype]} {where}"


def _expanded(graph: ir.Graph, op: Op, dtype: str) -> ir.Value:
    """Return the dequantized weight of ``op``, rounded to ``dtype``: one matrix for all of its readers."""
    name = f"{dtype}.{op.inputs['weight'].name}"
    if name in graph.initializers:
        return graph.initializers[name]
    weight, scale, offset = (weight_tensor(op.inputs.get(operand)) for operand in ("weight", *_NUMBERS))
    assert weight is not None
    assert scale is not None
    shape = extents(weight)

    def load() -> np.ndarray:
        elements, factors, added = (None if of is None else _rows(of.numpy()) for of in (weight, scale, offset))
        assert elements is not None
        result = np.empty(elements.shape, NUMPY[dtype])
        for first in range(0, len(result), _ROWS_AT_ONCE):
            part = slice(first, first + _ROWS_AT_ONCE)
            wide = scaled(elements[part], *(None if rows is None else rows[part] for rows in (factors, added)))
            result[part] = wide.astype(np.float32)
        return result.reshape(shape)

    return add_initializer(graph, name, computed(load, ONNX[dtype], shape))


def _rows(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1, array.shape[-1])
