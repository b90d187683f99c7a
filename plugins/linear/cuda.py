"""Linear on a GPU: the streaming kernel for a few rows, the tiled one (or a cuBLASLt product) above."""

from __future__ import annotations

from ..cuda.activation import ACTIVATION_FLAGS
from ..cuda.lowering import Lowering, Step
from ..cuda.stream import Streaming
from ..cuda.tiles import Tiling
from ..launch import Buffer, Extent, Launch, Operand, launch


def stream(
    y: Buffer,
    x: Operand,
    weight: Buffer,
    rows: Extent,
    how: Streaming,
    *,
    norm: tuple[Buffer, float] | None = None,
    activation: str = "none",
    bias: Buffer | None = None,
    residual: Buffer | None = None,
) -> Launch:
    """y = activation([rms_norm](x) @ weight.T [+ bias]) [+ residual]; not both an activation and a residual.

    x, weight and residual are 16-bit, y is that or float32; ``norm`` (weight, epsilon) and bias are float32.
    """
    flags = {
        "TL_NORM": int(norm is not None),
        "TL_BIAS": int(bias is not None),
        "TL_RESIDUAL": int(residual is not None),
        "TL_FLOAT_OUT": int(y.dtype == "float32"),
        "TL_ACTIVATION": ACTIVATION_FLAGS[activation],
    }
    kernel = how.kernel("linear/cuda.cuh", "linear", weight, flags)
    norm_weight, epsilon = norm or (None, 0.0)
    return launch(kernel, how.grid(weight), y, x, weight, norm_weight, bias, residual, rows, epsilon)


def tiled(
    y: Buffer,
    x: Operand,
    weight: Buffer,
    rows: Extent,
    how: Tiling,
    *,
    activation: str = "none",
    bias: Buffer | None = None,
    residual: Operand | None = None,
) -> Launch:
    """As :func:`stream`, for many rows and without a norm; a float32 y takes no residual."""
    flags = {
        "TL_BIAS": int(bias is not None),
        "TL_RESIDUAL": int(residual is not None),
        "TL_FLOAT_OUT": int(y.dtype == "float32"),
        "TL_ACTIVATION": ACTIVATION_FLAGS[activation],
    }
    kernel = how.kernel("linear/tiled.cuh", "linear_tiled", weight, flags)
    return launch(kernel, how.grid(weight), *how.maps(x, weight), y, bias, residual, rows)


def lower(op: Lowering) -> list[Step]:
    """The streaming kernel, or what is fastest for many rows."""
    how = op.streaming()
    if how is None:
        return op.product(op.result("y"))
    weight, x = op.matrix("weight"), op.rows("x")
    more = {"norm": op.norm(), "activation": op.attribute("activation")}
    more |= {"residual": op.optional_rows("residual"), "bias": op.optional_vector("bias")}
    return [stream(op.result("y"), x, weight, op.num_rows("y"), how, **more)]
