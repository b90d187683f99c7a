"""QueryKeyNorm on a GPU."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..launch import DTYPE_FLAGS, Command, features, kernel, launch


def lower(op: Lowering) -> list[Command]:
    """Launch one kernel: a block per row; threads have two or more vectors of eight elements if rows are long."""
    x, y = op.rows("x"), op.new("y")
    (queries,), (keys,) = op.extents("query_weight"), op.extents("key_weight")
    assert isinstance(queries, int)
    assert isinstance(keys, int)
    if queries % 8 or keys % 8:
        op.refuse(
            f"queries have {queries} elements and keys have {keys}, expected multiples of 8: build for --target cpu"
        )
    vectors = 1 << (features(x) // 8 - 1).bit_length()
    threads = min(512, max(32, vectors // 2))
    defines = {"TL_QUERIES": queries, "TL_KEYS": keys, "TL_FEATURES": features(x)}
    defines |= {"TL_THREADS": threads, "TL_FP16": DTYPE_FLAGS[x.dtype]}
    specialised = kernel("query_key_norm/cuda.cuh", "query_key_norm", threads, 0, defines)
    weights = op.vector("query_weight"), op.vector("key_weight")
    return [launch(specialised, (op.num_rows("y"),), y, x, *weights, op.attribute("epsilon"))]
