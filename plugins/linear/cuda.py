"""Linear on a GPU: GEMV for a few rows; for more, the tiled kernel or a cuBLASLt product."""

from __future__ import annotations

from math import prod

from ..cuda.activation import ACTIVATION_FLAGS
from ..cuda.few_rows import FewRows
from ..cuda.lowering import Lowering
from ..cuda.peer_rows import HERE, PeerRows, on_first_rank, on_owners
from ..cuda.tiles import Tiling
from ..cuda.weight_form import form_of
from ..launch import DTYPE_FLAGS, Buffer, Command, Extent, Launch, Operand, WeightBuffers, features, kernel, launch

_DEQUANTIZE_THREADS, _BYTES_PER_THREAD = 256, 16


def stream(
    y: Buffer,
    x: Buffer,
    weight: WeightBuffers,
    rows: Extent,
    how: FewRows,
    *,
    norm: tuple[Buffer, float] | None = None,
    activation: str = "none",
    bias: Buffer | None = None,
    residual: Buffer | None = None,
    peers: PeerRows = HERE,
) -> Launch:
    """y = activation([rms_norm](x) @ weight.T [+ bias]) [+ residual]; not both an activation and a residual.

    x and residual are 16-bit; y is 16-bit or float32, and stored where ``peers`` says; ``norm`` (weight, epsilon) and
    bias are float32.
    """
    flags = {
        "TL_NORM": int(norm is not None),
        "TL_BIAS": int(bias is not None),
        "TL_RESIDUAL": int(residual is not None),
        "TL_FLOAT_OUT": int(y.dtype == "float32"),
        "TL_ACTIVATION": ACTIVATION_FLAGS[activation],
        **peers.defines,
    }
    specialised = how.kernel("linear/cuda.cuh", "linear", weight, flags)
    norm_weight, epsilon = norm or (None, 0.0)
    operands = (weight.values, *weight.numbers, norm_weight, bias, residual, peers.ranks)
    return launch(specialised, how.grid(weight), y, x, *operands, rows, epsilon, how.x_scale)


def tiled(
    y: Buffer,
    x: Operand,
    weight: WeightBuffers,
    rows: Extent,
    how: Tiling,
    peers: PeerRows = HERE,
    *,
    activation: str = "none",
    bias: Buffer | None = None,
    residual: Operand | None = None,
) -> Launch:
    """Like :func:`stream`, for many rows and without a norm; a float32 y takes no residual. x has the weight's type."""
    flags = {
        "TL_BIAS": int(bias is not None),
        "TL_RESIDUAL": int(residual is not None),
        "TL_FLOAT_OUT": int(y.dtype == "float32"),
        "TL_ACTIVATION": ACTIVATION_FLAGS[activation],
        **peers.defines,
    }
    maps, added = how.maps(x, weight), (bias, residual, peers.ranks)
    if how.config.swap_ab:
        specialised = how.kernel("linear/swap_ab.cuh", "linear_swap_ab", weight, flags)
        return launch(specialised, how.grid(weight), *maps, y, *weight.numbers, *added, rows)
    specialised = how.kernel("linear/tiled.cuh", "linear_tiled", weight, flags)
    operands = (*weight.numbers, how.row_scales, *added, how.x_scale)
    return launch(specialised, how.grid(weight), *maps, y, *operands, rows)


def dequantize(to: Buffer, weight: WeightBuffers) -> Launch:
    """Dequantize the int8 or 4-bit ``weight`` to 16-bit elements: ``to`` [..., out, in]."""
    in_features, form = weight.values.shape[-1], form_of(weight)
    assert isinstance(in_features, int)
    size = prod(extent for extent in weight.values.shape if isinstance(extent, int))
    defines = {"TL_IN": in_features, "TL_THREADS": _DEQUANTIZE_THREADS, "TL_FP16": DTYPE_FLAGS[to.dtype]} | form.defines
    specialised = kernel("linear/dequantize.cuh", "dequantize", _DEQUANTIZE_THREADS, 0, defines)
    grid = -(-form.weight_bytes(size) // (_BYTES_PER_THREAD * _DEQUANTIZE_THREADS))
    return launch(specialised, (grid,), to, weight.values, *weight.numbers, size // in_features)


def lower(op: Lowering) -> list[Command]:
    """Launch the GEMV kernel, or the fastest choice for many rows."""
    y, peers = _rows(op)
    how = op.few_rows()
    if how is None:
        return op.product(y, peers)
    weight, x = op.weight(), op.rows("x")
    more = {"norm": op.norm(), "activation": op.attribute("activation"), "peers": peers}
    residual = op.optional_rows("residual") or op.optional_rows("added")
    more |= {"residual": residual, "bias": op.optional_vector("bias")}
    return [stream(y, x, weight, op.num_rows("y"), how, **more)]


def _rows(op: Lowering) -> tuple[Buffer, PeerRows]:
    """The result y, and the rank that stores it."""
    if op.has("rank_sums"):
        sums = op.place("y", op.state("rank_sums"))
        return sums, on_owners(op.state("ranks"), sums)
    y = op.result("y")
    return y, on_first_rank(op.state("ranks"), features(y)) if op.has("ranks") else HERE
