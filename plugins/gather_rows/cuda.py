"""GatherRows on a GPU."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..launch import Command, features, kernel, launch, symbol

_THREADS = 128


def lower(op: Lowering) -> list[Command]:
    """y[i] = x[indices[i]] for num_logits rows of 16-bit elements."""
    y = op.new("y")
    specialised = kernel("gather_rows/cuda.cuh", "gather_rows", _THREADS, 0, {"TL_HIDDEN": features(y)})
    return [launch(specialised, (symbol("num_logits"),), y, op.rows("x"), op.step_input("indices"))]
