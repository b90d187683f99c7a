"""MergeRows on a GPU."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..launch import Command, features, kernel, launch

_THREADS, _VECTOR = 256, 8  # a thread copies 16 bytes


def lower(op: Lowering) -> list[Command]:
    """Launch one kernel with a thread for each vector of a row of the result."""
    x, y = op.rows("x"), op.result("y")
    vectors = features(y) // _VECTOR
    defines: dict[str, int | str] = {"TL_VECTORS": vectors, "TL_THREADS": _THREADS}
    specialised = kernel("merge_rows/cuda.cuh", "merge_rows", _THREADS, 0, defines)
    return [launch(specialised, (op.num_rows("y"), -(-vectors // _THREADS)), y, x)]
