"""QuantizeRows on a GPU."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..cuda.row_scales import RowScales, row_type
from ..launch import DTYPE_FLAGS, Buffer, Command, Extent, Launch, features, kernel, launch

_MAX_THREADS = 512


def quantize(y: Buffer, x: Buffer, scales: RowScales, rows: Extent) -> Launch:
    """y [rows, features] = x / ``scales``. If each row has its own scale, it is computed too."""
    vectors = features(x) // 8
    threads = min(_MAX_THREADS, max(32, 1 << (vectors - 1).bit_length()))
    defines = {
        "TL_FEATURES": features(x),
        "TL_THREADS": threads,
        "TL_ROW_SCALES": int(scales.per_row),
        "TL_Y_TYPE": row_type(scales),
        "TL_FP16": DTYPE_FLAGS[x.dtype],
    }
    specialised = kernel("quantize_rows/cuda.cuh", "quantize_rows", threads, 0, defines)
    return launch(specialised, (rows,), y, scales.buffer, x, scales.value)


def lower(op: Lowering) -> list[Command]:
    """Launch one kernel."""
    scales = op.scales("y")
    assert scales is not None
    return [quantize(op.new("y"), op.rows("x"), scales, op.num_rows("y"))]
