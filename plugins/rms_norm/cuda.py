"""RmsNorm on a GPU."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..cuda.row_norm import RowNorm
from ..launch import Command, launch


def lower(op: Lowering) -> list[Command]:
    """total = x [+ residual]; y = total / sqrt(mean(total^2) + epsilon) * weight.

    ``total`` is written where there is a ``residual``, and only there.
    """
    rows = RowNorm.of(op)
    weight, epsilon = op.vector("weight"), op.attribute("epsilon")
    specialised = rows.kernel("rms_norm/cuda.cuh", "rms_norm")
    return [launch(specialised, (op.num_rows("y"),), rows.y, rows.total, rows.x, weight, rows.residual, epsilon)]
