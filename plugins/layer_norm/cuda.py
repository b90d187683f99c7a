"""LayerNorm on a GPU."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..cuda.row_norm import RowNorm
from ..launch import Command, launch


def lower(op: Lowering) -> list[Command]:
    """total = x [+ residual]; y = (total - mean) / sqrt(variance + epsilon) * weight [+ bias].

    ``total`` is written where there is a ``residual``, and only there.
    """
    rows = RowNorm.of(op)
    weight, bias, epsilon = op.vector("weight"), op.optional_vector("bias"), op.attribute("epsilon")
    specialised = rows.kernel("layer_norm/cuda.cuh", "layer_norm", TL_BIAS=int(bias is not None))
    return [launch(specialised, (op.num_rows("y"),), rows.y, rows.total, rows.x, weight, rows.residual, bias, epsilon)]
