"""Linear on a GPU: the streaming kernel for a few rows, the tiled one (or a cuBLASLt product) above."""

from __future__ import annotations

from math import prod

from ..cuda.activation import ACTIVATION_FLAGS
from ..cuda.lowering import Lowering
from ..cuda.stream import Streaming
from ..cuda.tiles import Tiling
from ..cuda.weight_form import form_of
from ..launch import DTYPE_FLAGS, Buffer, Command, Extent, Launch, Operand, WeightBuffers, kernel, launch

_DEQUANTIZE_THREADS, _BYTES_PER_THREAD = 256, 16


def stream(
    y: Buffer,
    x: Buffer,
    weight: WeightBuffers,
    rows: Extent,
    how: Streaming,
    *,
    norm: tuple[Buffer, float] | None = None,
    activation: str = "none",
    bias: Buffer | None = None,
    residual: Buffer | None = None,
) -> Launch:
    """y = activation([rms_norm](x) @ weight.T [+ bias]) [+ residual]; not both an activation and a residual.

    x and residual are 16-bit; y is 16-bit or float32; ``norm`` (weight, epsilon) and
    bias are float32.
    """
    flags = {
        "TL_NORM": int(norm is not None),
        "TL_BIAS": int(bias is not None),
        "TL_RESIDUAL": int(residual is not None),
        "TL_FLOAT_OUT": int(y.dtype == "float32"),
        "TL_ACTIVATION": ACTIVATION_FLAGS[activation],
    }
    specialised = how.kernel("linear/cuda.cuh", "linear", weight, flags)
    norm_weight, epsilon = norm or (None, 0.0)
    operands = (weight.values, *weight.numbers, norm_weight, bias, residual)
    return launch(specialised, how.grid(weight), y, x, *operands, rows, epsilon, how.x_scale)


def tiled(
    y: Buffer,
    x: Operand,
    weight: WeightBuffers,
    rows: Extent,
    how: Tiling,
    *,
    activation: str = "none",
    bias: Buffer | None = None,
    residual: Operand | None = None,
) -> Launch:
    """As :func:`stream`, for many rows and without a norm; a float32 y takes no residual. x is of the weight's type."""
    flags = {
        "TL_BIAS": int(bias is not None),
        "TL_RESIDUAL": int(residual is not None),
        "TL_FLOAT_OUT": int(y.dtype == "float32"),
        "TL_ACTIVATION": ACTIVATION_FLAGS[activation],
    }
    specialised = how.kernel("linear/tiled.cuh", "linear_tiled", weight, flags)
    operands = (*weight.numbers, how.row_scales, bias, residual, how.x_scale)
    return launch(specialised, how.grid(weight), *how.maps(x, weight), y, *operands, rows)


def dequantize(to: Buffer, weight: WeightBuffers) -> Launch:
    """``to`` [..., out, in] = the 16-bit elements that ``weight`` of int8 or 4 bits means."""
    in_features, form = weight.values.shape[-1], form_of(weight)
    assert isinstance(in_features, int)
    size = prod(extent for extent in weight.values.shape if isinstance(extent, int))
    defines = {"TL_IN": in_features, "TL_THREADS": _DEQUANTIZE_THREADS, "TL_FP16": DTYPE_FLAGS[to.dtype]} | form.defines
    specialised = kernel("linear/dequantize.cuh", "dequantize", _DEQUANTIZE_THREADS, 0, defines)
    grid = -(-form.weight_bytes(size) // (_BYTES_PER_THREAD * _DEQUANTIZE_THREADS))
    return launch(specialised, (grid,), to, weight.values, *weight.numbers, size // in_features)


def lower(op: Lowering) -> list[Command]:
    """The streaming kernel, or what is fastest for many rows."""
    how = op.streaming()
    if how is None:
        return op.product(op.result("y"))
    weight, x = op.weight(), op.rows("x")
    more = {"norm": op.norm(), "activation": op.attribute("activation")}
    residual = op.optional_rows("residual") or op.optional_rows("added")
    more |= {"residual": residual, "bias": op.optional_vector("bias")}
    return [stream(op.result("y"), x, weight, op.num_rows("y"), how, **more)]
