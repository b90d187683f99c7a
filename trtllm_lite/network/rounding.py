"""Rounds activations to 8 bits by the standard ONNX operators QuantizeLinear and DequantizeLinear.

There is one constant scale for the whole tensor, or a scale for each token, which standard operators compute from the
token's largest magnitude.
"""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trtllm_lite.network.blocks import AddOperator
from trtllm_lite.network.dtypes import ONNX

# The largest number of each type that activations are rounded to.
LARGEST = {"int8": 127.0, "float8_e4m3fn": 448.0}
# The least scale of a token: far below that of any activations, but its inverse is a finite float32.
_MIN_SCALE = 1e-30

# A function that makes a constant by its name; a name has the same value wherever it is used.
SharedConstant = Callable[[str, NDArray], ir.Value]


def round_per_tensor(add: AddOperator, x: ir.Value, to: str, scale: ir.Value) -> ir.Value:
    """Round ``x`` to ``to`` with the constant ``scale``; returns the float32 value for products to read."""
    return _round(add, x, to, scale, {})


def round_per_token(add: AddOperator, constant: SharedConstant, x: ir.Value, to: str, features: int) -> ir.Value:
    """Like :func:`round_per_tensor`, with a scale for each token that maps the largest magnitude of its ``features`` to
    the largest number of ``to``."""
    last_axis = constant("quantize.last_axis", np.array([-1], np.int64))
    factor = constant(f"quantize.{to}.factor", np.array(1 / LARGEST[to], np.float32))
    least = constant("quantize.min_scale", np.array(_MIN_SCALE, np.float32))
    shape = _shape(x)
    one_each = (*shape[:-1], 1)
    magnitude = add("Abs", [x], "magnitude", shape, {})
    largest = add("ReduceMax", [magnitude, last_axis], "largest", one_each, {"keepdims": 1})
    wanted = add("Mul", [largest, factor], "wanted_scale", one_each, {})
    scale = add("Max", [wanted, least], "scale", one_each, {})
    return _round(add, x, to, scale, {"axis": -1, "block_size": features})


def _round(add: AddOperator, x: ir.Value, to: str, scale: ir.Value, blocks: dict[str, int]) -> ir.Value:
    rounded = add("QuantizeLinear", [x, scale], "quantized", _shape(x), {**blocks, "output_dtype": int(ONNX[to])})
    rounded.type = ir.TensorType(ONNX[to])
    return add("DequantizeLinear", [rounded, scale], "rounded", _shape(x), blocks)


def _shape(x: ir.Value) -> tuple[int | ir.SymbolicDim, ...]:
    """The shape as far as it is known: networks under construction have none yet."""
    return () if x.shape is None else tuple(x.shape)
