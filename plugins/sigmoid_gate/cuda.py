"""SigmoidGate on a GPU."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..launch import DTYPE_FLAGS, Command, features, kernel, launch

_THREADS = 256


def lower(op: Lowering) -> list[Command]:
    """Launch one kernel with a block for each row."""
    x, values, y = op.rows("x"), op.rows("values"), op.new("y")
    defines = {"TL_IN": features(x), "TL_OUT": features(y), "TL_THREADS": _THREADS, "TL_FP16": DTYPE_FLAGS[x.dtype]}
    specialised = kernel("sigmoid_gate/cuda.cuh", "sigmoid_gate", _THREADS, 0, defines)
    return [launch(specialised, (op.num_rows("y"),), y, x, op.vector("weight"), values)]
