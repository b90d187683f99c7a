"""MixStreams on a GPU."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..cuda.row_norm import threads_of_row
from ..launch import DTYPE_FLAGS, Command, features, kernel, launch

_MOST_THREADS = 256
_INPUTS, _OUTPUTS = 5, 4


def lower(op: Lowering) -> list[Command]:
    """Launch one kernel with a block for each row."""
    given = [op.optional_rows(f"x{number}") for number in range(_INPUTS)]
    y, hidden = [op.new(f"y{number}") for number in range(_OUTPUTS)], features(op.rows("x0"))
    residual, scaled = op.optional_rows("residual"), op.new("scaled") if op.has("scaled") else None
    threads = threads_of_row(op, hidden, _MOST_THREADS)
    defines = {"TL_HIDDEN": hidden, "TL_INPUTS": sum(rows is not None for rows in given)}
    defines |= {"TL_RESIDUAL": int(residual is not None), "TL_SCALED": int(scaled is not None)}
    defines |= {"TL_THREADS": threads, "TL_FP16": DTYPE_FLAGS[y[0].dtype]}
    specialised = kernel("mix_streams/cuda.cuh", "mix_streams", threads, 0, defines)
    operands = *given, residual, op.vector("router"), op.vector("weights"), op.optional_vector("scale")
    return [launch(specialised, (op.num_rows("y0"),), *y, scaled, *operands, op.attribute("epsilon"))]
