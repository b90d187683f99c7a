"""AllReduce on GPUs that reach each other's memory."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..cuda.ranks import meeting
from ..cuda.row_norm import RowNorm
from ..launch import DTYPE_FLAGS, Command, features, kernel, launch

_VECTOR = 8  # elements of one load
_THREADS = 512


def lower(op: Lowering) -> list[Command]:
    """One launch, which also adds a ``residual`` and norms the sum by ``weight`` where these are operands."""
    where = (op.state("ranks"), op.state("rank_flags"))
    if op.has("weight"):
        rows = RowNorm.of(op)
        _, defines = meeting(op.max_tokens, 1)
        specialised = rows.kernel("all_reduce/norm.cuh", "all_reduce_norm", **defines)
        norm = (op.vector("weight"), op.attribute("epsilon"))
        return [launch(specialised, (op.num_rows("y"),), rows.y, rows.total, rows.x, rows.residual, *norm, *where)]
    x, y = op.rows("x"), op.new("y")
    row_vectors = features(y) // _VECTOR
    blocks, defines = meeting(op.max_tokens * row_vectors, _THREADS)
    specialised = kernel("all_reduce/cuda.cuh", "all_reduce", _THREADS, 0, {"TL_FP16": DTYPE_FLAGS[y.dtype], **defines})
    return [launch(specialised, (blocks,), y, x, *where, op.num_rows("y"), row_vectors)]
