"""GatherRows on a GPU."""

from __future__ import annotations

from ..launch import Buffer, Launch, Operand, features, kernel, launch, symbol

_THREADS = 128


def gather_rows(y: Buffer, x: Operand, indices: Buffer) -> Launch:
    """y[i] = x[indices[i]] for num_logits rows of 16-bit elements."""
    specialised = kernel("gather_rows/cuda.cuh", "gather_rows", _THREADS, 0, {"TL_HIDDEN": features(y)})
    return launch(specialised, (symbol("num_logits"),), y, x, indices)
