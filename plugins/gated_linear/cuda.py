"""GatedLinear on a GPU: GEMV for a few rows; for more, a tiled kernel, or a cuBLASLt product and a kernel."""

from __future__ import annotations

from ..cuda.activation import ACTIVATION_FLAGS
from ..cuda.few_rows import FewRows
from ..cuda.lowering import Lowering
from ..cuda.row_scales import RowScales, row_type
from ..cuda.tiles import Tiling
from ..launch import DTYPE_FLAGS, Buffer, Command, Extent, Launch, Operand, WeightBuffers, features, kernel, launch

_GATE_THREADS, _ELEMENTS_PER_THREAD = 256, 16


def stream(
    y: Buffer,
    x: Buffer,
    weight: WeightBuffers,
    rows: Extent,
    how: FewRows,
    *,
    activation: str,
    norm: tuple[Buffer, float] | None = None,
    bias: Buffer | None = None,
    added: Buffer | None = None,
    y_scales: RowScales | None = None,
) -> Launch:
    """y = activation(g) * u with g, u = [rms_norm](x) @ weight[0].T, weight[1].T [+ bias[0], bias[1]] [+ added].

    A row of ``added`` has the features of g, then those of u. With ``y_scales`` (static), y is bytes.
    """
    flags = {"TL_NORM": int(norm is not None), "TL_BIAS": int(bias is not None), "TL_Y_TYPE": row_type(y_scales)}
    flags |= {"TL_ACTIVATION": ACTIVATION_FLAGS[activation], "TL_ADDED": int(added is not None)}
    kernel = how.kernel("gated_linear/cuda.cuh", "gated_linear", weight, flags)
    norm_weight, epsilon = norm or (None, 0.0)
    operands = (weight.values, *weight.numbers, norm_weight, bias, added)
    y_factor = _factor(y_scales)
    return launch(kernel, how.grid(weight), y, x, *operands, rows, epsilon, how.x_scale, y_factor)


def tiled(
    y: Buffer,
    x: Operand,
    weight: WeightBuffers,
    rows: Extent,
    how: Tiling,
    *,
    activation: str,
    added: Operand | None = None,
    y_scales: RowScales | None = None,
) -> Launch:
    """Like :func:`stream`, for many rows and without norm and bias. x has the weight's type."""
    flags = {"TL_ACTIVATION": ACTIVATION_FLAGS[activation], "TL_ADDED": int(added is not None)}
    if how.config.swap_ab:
        kernel = how.kernel("gated_linear/swap_ab.cuh", "gated_linear_swap_ab", weight, flags)
        return launch(kernel, how.grid(weight), *how.maps(x, weight), y, *weight.numbers, added, rows)
    flags["TL_Y_TYPE"] = row_type(y_scales)
    kernel = how.kernel("gated_linear/tiled.cuh", "gated_linear_tiled", weight, flags)
    numbers = (how.x_scale, _factor(y_scales), rows)
    operands = (y, *weight.numbers, how.row_scales, added)
    return launch(kernel, how.grid(weight), *how.maps(x, weight), *operands, *numbers)


def _factor(scales: RowScales | None) -> float:
    return 0.0 if scales is None else 1 / scales.value


def gate_mul(y: Buffer, both: Buffer, rows: Extent, *, activation: str) -> Launch:
    """y[t, i] = activation(both[t, i]) * both[t, I + i] for I features, 16-bit elements."""
    gated = features(y)
    defines = {"TL_OUT": gated, "TL_THREADS": _GATE_THREADS, "TL_FP16": DTYPE_FLAGS[y.dtype]}
    defines["TL_ACTIVATION"] = ACTIVATION_FLAGS[activation]
    specialised = kernel("gated_linear/gate_mul.cuh", "gate_mul", _GATE_THREADS, 0, defines)
    return launch(specialised, (rows, -(-gated // (_ELEMENTS_PER_THREAD * _GATE_THREADS))), y, both)


def lower(op: Lowering) -> list[Command]:
    """Launch the GEMV kernel, or the fastest choice for many rows."""
    how = op.few_rows()
    if how is None:
        return op.product(op.new("y"))
    weight, x = op.weight(), op.rows("x")
    more = {"norm": op.norm(), "bias": op.optional_vector("bias"), "activation": op.attribute("activation")}
    more |= {"added": op.optional_rows("added"), "y_scales": op.scales("y")}
    return [stream(op.new("y"), x, weight, op.num_rows("y"), how, **more)]
