"""GatherColumns on a GPU."""

from __future__ import annotations

from trtllm_lite.common.vocabulary import DTYPES

from ..cuda.lowering import Lowering
from ..launch import Command, features, kernel, launch

_THREADS = 256


def lower(op: Lowering) -> list[Command]:
    """Launch one kernel with a thread for each element. Logits are float32; other rows are 16-bit."""
    x, y = op.rows("x"), op.result("y")
    defines: dict[str, int | str] = {
        "TL_FEATURES": features(x),
        "TL_COLUMNS": features(y),
        "TL_ITEM_BYTES": DTYPES[y.dtype].bits // 8,
        "TL_THREADS": _THREADS,
    }
    specialised = kernel("gather_columns/cuda.cuh", "gather_columns", _THREADS, 0, defines)
    grid = (op.num_rows("y"), -(-features(y) // _THREADS))
    return [launch(specialised, grid, y, x, op.indices("order", features(x)))]
