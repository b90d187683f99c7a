"""RescaleRows on a GPU."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..cuda.row_norm import threads_of_row
from ..launch import DTYPE_FLAGS, Command, features, kernel, launch


def lower(op: Lowering) -> list[Command]:
    """Launch one kernel with a block for each row."""
    x, like, y = op.rows("x"), op.rows("like"), op.new("y")
    threads = threads_of_row(op, features(x))
    defines = {"TL_FEATURES": features(x), "TL_THREADS": threads, "TL_FP16": DTYPE_FLAGS[x.dtype]}
    specialised = kernel("rescale_rows/cuda.cuh", "rescale_rows", threads, 0, defines)
    return [launch(specialised, (op.num_rows("y"),), y, x, like, op.attribute("least"))]
