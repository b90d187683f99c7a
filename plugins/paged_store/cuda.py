"""PagedStore on a GPU."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..launch import Command, features, kernel, launch

_THREADS = 128


def lower(op: Lowering) -> list[Command]:
    """cache[slots[indices[i]]] = x[i], or cache[slots[i]] = x[i], of 16-bit elements."""
    x = op.rows("x")
    cache = op.cache("cache", op.tokens_per_block, features(x))
    indices = op.step_input("indices") if op.has("indices") else None
    specialised = kernel("paged_store/cuda.cuh", "paged_store", _THREADS, 0, {"TL_HIDDEN": features(x)})
    return [launch(specialised, (op.num_rows("x"),), cache, x, op.rows("slots"), indices)]
