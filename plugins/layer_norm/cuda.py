"""LayerNorm on a GPU."""

from __future__ import annotations

from ..launch import DTYPE_FLAGS, Buffer, Extent, Launch, Operand, features, kernel, launch


def layer_norm(
    y: Buffer,
    x: Operand,
    weight: Buffer,
    epsilon: float,
    rows: Extent,
    *,
    bias: Buffer | None = None,
    residual: Operand | None = None,
    total: Buffer | None = None,
) -> Launch:
    """total = x [+ residual]; y = (total - mean) / sqrt(variance + epsilon) * weight [+ bias], a block a row.

    ``total`` is written where there is a ``residual``, and only there.
    """
    hidden = features(y)
    vectors = 1 << (hidden // 8 - 1).bit_length()
    threads = min(512, max(32, vectors if vectors <= 128 else vectors // 2))
    defines = {
        "TL_HIDDEN": hidden,
        "TL_THREADS": threads,
        "TL_RESIDUAL": int(residual is not None),
        "TL_BIAS": int(bias is not None),
        "TL_FP16": DTYPE_FLAGS[y.dtype],
    }
    specialised = kernel("layer_norm/cuda.cuh", "layer_norm", threads, 0, defines)
    return launch(specialised, (rows,), y, total, x, weight, residual, bias, epsilon)
