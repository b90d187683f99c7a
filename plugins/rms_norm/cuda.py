"""RmsNorm on a GPU."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..cuda.row_norm import RowNorm
from ..launch import Command, launch


def lower(op: Lowering) -> list[Command]:
    """total = x [+ residual]; y = total / sqrt(mean(total^2) + epsilon) * weight.

    ``total`` is written where there is a ``residual``, and only there.
    """
    rows, scales = RowNorm.of(op), op.scales("y")
    weight, epsilon = op.vector("weight"), op.attribute("epsilon")
    scale, buffer = (0.0, None) if scales is None else (scales.value, scales.buffer)
    flags = {"TL_Y_E4M3": int(scales is not None), "TL_ROW_SCALES": int(buffer is not None)}
    specialised = rows.kernel("rms_norm/cuda.cuh", "rms_norm", **flags)
    operands = (rows.y, buffer, rows.total, rows.x, weight, rows.residual)
    return [launch(specialised, (op.num_rows("y"),), *operands, epsilon, scale)]
