"""Writes and recognises standard ONNX for scale * element + offset.

DequantizeLinear is recognised with a scale for the matrix, for each row (axis 0) or for each block of a row (axis 1),
with or without zero points; an Add of an offset for each row or block may follow it. A Cast converts 16-bit scales and
offsets to float32. The operands of a fused operator are made from these tensors when they are read.
"""

from collections.abc import Mapping
from math import prod

import numpy as np
import onnx_ir as ir

from trtllm_lite.network.blocks import dequantize
from trtllm_lite.network.dtypes import PLAIN_ONNX
from trtllm_lite.network.tensors import add_initializer, extents, lazy
from trtllm_lite.quantize.formats.format import derived, initializer, made_by
from trtllm_lite.quantize.insertion import adder

_FLOAT = ir.DataType.FLOAT
_UINT8_BIAS = 128  # uint8 elements are stored as int8, reduced by this


def dequantized(graph: ir.Graph, before: ir.Node, name: str, tensors: Mapping[str, ir.TensorProtocol]) -> ir.Value:
    """The float32 matrix of ``tensors`` (weight [out, in], weight_scale and maybe weight_offset [out, blocks]).

    It is made by standard operators in front of ``before``.
    """

    def constant(what: str, array: np.ndarray) -> ir.Value:
        return add_initializer(graph, f"{name}.{what}", ir.tensor(array))

    rows, depth = extents(tensors["weight"])
    blocks = extents(tensors["weight_scale"])[1]
    stored = dict(tensors)
    if blocks == 1:
        stored["weight_scale"] = _reshaped(stored["weight_scale"], (rows,))
    if "weight_offset" in stored:
        stored["weight_offset"] = _reshaped(stored["weight_offset"], (rows, blocks, 1))
    parts = {part: add_initializer(graph, f"{name}.{part}", tensor) for part, tensor in stored.items()}
    return dequantize(adder(graph, before, name), constant, parts, (rows, depth), blocks)


def recognise_dequantized(value: ir.Value | None) -> dict[str, ir.Value] | None:
    """The operands of a fused operator whose weight is ``value``, a float32 matrix; None if it is not recognised."""
    found = _linear(value)
    return found if found is not None else _with_offset(value)


def _linear(value: ir.Value | None) -> dict[str, ir.Value] | None:
    """The operands of a DequantizeLinear."""
    node = made_by(value, "DequantizeLinear")
    if node is None:
        return None
    weight, scale, zeros = initializer(node.inputs[0]), _numbers(node.inputs[1]), None
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        zeros = initializer(node.inputs[2])
        if zeros is None or scale is None or _shape(zeros) != _shape(scale):
            return None
    if weight is None or scale is None or len(_shape(weight)) != 2:
        return None
    scales = _in_blocks(node, scale, weight)
    if scales is None:
        return None
    if weight.dtype == ir.DataType.UINT8:
        return {
            "weight": _as_int8(weight),
            "weight_scale": scales,
            "weight_offset": _offset_of(scales, weight, zeros, _UINT8_BIAS),
        }
    operands = {"weight": weight, "weight_scale": scales}
    return operands if zeros is None else operands | {"weight_offset": _offset_of(scales, weight, zeros, 0)}


def _with_offset(value: ir.Value | None) -> dict[str, ir.Value] | None:
    """The operands of a DequantizeLinear without zero points and an Add after it, perhaps between Reshapes."""
    outer = made_by(value, "Reshape")
    add = made_by(value if outer is None else outer.inputs[0], "Add")
    for parts, other in ((0, 1), (1, 0)) if add is not None else ():
        assert add is not None
        inner = made_by(add.inputs[parts], "Reshape") if outer is not None else None
        operands = _linear(add.inputs[parts] if inner is None else inner.inputs[0])
        offset = _numbers(add.inputs[other])
        if operands is None or offset is None or "weight_offset" in operands:
            continue
        rows, blocks = _shape(operands["weight_scale"])
        wanted = (rows, 1) if inner is None else (rows, blocks, 1)
        fits = (inner is None and blocks == 1) or (inner is not None and _is_cut(inner, rows, blocks))
        if fits and _shape(offset) == wanted and value is not None and _dims(value) == _shape(operands["weight"]):
            return operands | {"weight_offset": _blocks_of(offset, (rows, blocks))}
    return None


def _is_cut(node: ir.Node, rows: int, blocks: int) -> bool:
    """Whether a Reshape makes [rows, blocks, block size]."""
    return _dims(node.outputs[0])[:2] == (rows, blocks) and len(_dims(node.outputs[0])) == 3


def _dims(value: ir.Value) -> tuple[int, ...]:
    return tuple(dim for dim in value.shape or () if isinstance(dim, int))


def _shape(value: ir.Value) -> tuple[int, ...]:
    assert value.const_value is not None
    return extents(value.const_value)


def _numbers(value: ir.Value | None) -> ir.Value | None:
    """The initializer of scales or offsets of a plain type, possibly cast to float32."""
    cast = made_by(value, "Cast")
    found = initializer(value if cast is None else cast.inputs[0])
    if value is None or value.dtype != _FLOAT or found is None or found.dtype not in PLAIN_ONNX:
        return None
    return found


def _in_blocks(node: ir.Node, scale: ir.Value, weight: ir.Value) -> ir.Value | None:
    """``scale``, which is for the matrix, each row or each block, as [out, blocks]; None for any other scale."""
    axis, block = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
    (rows, depth), shape = _shape(weight), _shape(scale)
    if shape == () and not block:
        return _repeated(scale, rows, str(weight.name))
    if shape == (rows,) and axis in (0, -2) and not block:
        return _blocks_of(scale, (rows, 1))
    is_cut = len(shape) == 2 and shape[0] == rows and shape[1] * block == depth and axis in (1, -1)
    return scale if is_cut else None


def _reshaped(tensor: ir.TensorProtocol, shape: tuple[int, ...]) -> ir.TensorProtocol:
    return lazy(lambda: tensor.numpy().reshape(shape), tensor.dtype, shape, [tensor])


def _blocks_of(value: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    """The values of ``value`` as [out, blocks]."""
    assert value.const_value is not None
    assert prod(_shape(value)) == prod(shape)
    return derived(f"{value.name}.blocks", _reshaped(value.const_value, shape))


def _repeated(scalar: ir.Value, rows: int, weight: str) -> ir.Value:
    """The ``scalar`` scale of the whole of ``weight``, repeated as the scale of each row."""
    tensor = scalar.const_value
    assert tensor is not None
    shape = (rows, 1)
    repeated = lazy(lambda: np.full(shape, tensor.numpy()), tensor.dtype, shape, [tensor])
    return derived(f"{weight}.{scalar.name}", repeated)


def _as_int8(weight: ir.Value) -> ir.Value:
    tensor = weight.const_value
    assert tensor is not None

    def shifted() -> np.ndarray:
        return (tensor.numpy() ^ _UINT8_BIAS).view(np.int8)

    return derived(f"{weight.name}.int8", lazy(shifted, ir.DataType.INT8, extents(tensor), [tensor]))


def _offset_of(scale: ir.Value, weight: ir.Value, zeros: ir.Value | None, bias: int) -> ir.Value:
    """scale * (bias - zero point) in float32."""
    scales, points = scale.const_value, None if zeros is None else zeros.const_value
    assert scales is not None
    shape = extents(scales)

    def load() -> np.ndarray:
        point = np.float32(0) if points is None else points.numpy().astype(np.float32)
        steps = np.float32(bias) - (point if point.ndim == 0 else point.reshape(shape))
        return scales.numpy().astype(np.float32) * steps

    name = f"{weight.name}.{scale.name}.{'' if zeros is None else zeros.name}.offset"
    return derived(name, lazy(load, _FLOAT, shape, [scales] if points is None else [scales, points]))
