"""HeadLayerNorm on a GPU."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..launch import DTYPE_FLAGS, Command, features, kernel, launch

_MOST_THREADS = 512


def lower(op: Lowering) -> list[Command]:
    """Launch one kernel: a block per row, whose warps take heads in turn."""
    x, y = op.rows("x"), op.new("y")
    normed_heads, dim = op.extents("weight")
    assert isinstance(normed_heads, int)
    assert isinstance(dim, int)
    if dim % 8 or dim > 256:
        op.refuse(f"heads have {dim} elements, expected a multiple of 8 up to 256: build for --target cpu")
    threads = min(_MOST_THREADS, 32 * (features(x) // dim))
    defines = {"TL_NORMED_HEADS": normed_heads, "TL_FEATURES": features(x), "TL_HEAD_DIM": dim}
    defines |= {"TL_THREADS": threads, "TL_FP16": DTYPE_FLAGS[x.dtype]}
    specialised = kernel("head_layer_norm/cuda.cuh", "head_layer_norm", threads, 0, defines)
    return [launch(specialised, (op.num_rows("y"),), y, x, op.vector("weight"), op.attribute("epsilon"))]
