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
    threads = threads_of_row(op, hidden, _MOST_THREADS)
    defines = {"TL_HIDDEN": hidden, "TL_INPUTS": sum(rows is not None for rows in given)}
    defines |= {"TL_THREADS": threads, "TL_FP16": DTYPE_FLAGS[y[0].dtype]}
    specialised = kernel("mix_streams/cuda.cuh", "mix_streams", threads, 0, defines)
    weights = op.vector("router"), op.vector("weights")
    return [launch(specialised, (op.num_rows("y0"),), *y, *given, *weights, op.attribute("epsilon"))]
