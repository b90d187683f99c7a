"""RmsNorm on a GPU."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..cuda.row_norm import RowNorm
from ..cuda.row_scales import RowScales, row_type
from ..launch import Buffer, Command, Extent, Launch, launch


def rms_norm(rows: RowNorm, weight: Buffer, epsilon: float, scales: RowScales | None, count: Extent) -> Launch:
    """total = x [+ residual]; y = total / sqrt(mean(total^2) + epsilon) * weight, quantized if there are ``scales``.

    ``total`` is written where there is a ``residual``, and only there.
    """
    scale, buffer = (0.0, None) if scales is None else (scales.value, scales.buffer)
    flags = {"TL_Y_TYPE": row_type(scales), "TL_ROW_SCALES": int(buffer is not None)}
    specialised = rows.kernel("rms_norm/cuda.cuh", "rms_norm", **flags)
    return launch(specialised, (count,), rows.y, buffer, rows.total, rows.x, weight, rows.residual, epsilon, scale)


def lower(op: Lowering) -> list[Command]:
    """Launch one kernel."""
    rows, scales = RowNorm.of(op), op.scales("y")
    return [rms_norm(rows, op.vector("weight"), op.attribute("epsilon"), scales, op.num_rows("y"))]
