"""GatherColumns on a GPU."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..launch import Command, features, kernel, launch

_THREADS = 256


def lower(op: Lowering) -> list[Command]:
    """One launch: a thread for each element."""
    y = op.new("y")
    defines: dict[str, int | str] = {"TL_FEATURES": features(y), "TL_THREADS": _THREADS}
    specialised = kernel("gather_columns/cuda.cuh", "gather_columns", _THREADS, 0, defines)
    return [launch(specialised, (op.num_rows("y"), -(-features(y) // _THREADS)), y, op.rows("x"), op.indices("order"))]
