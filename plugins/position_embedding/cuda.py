"""PositionEmbedding on a GPU."""

from __future__ import annotations

from ..launch import DTYPE_FLAGS, Buffer, Launch, features, kernel, launch, symbol

_THREADS = 128


def position_embedding(y: Buffer, x: Buffer, position_ids: Buffer, weight: Buffer) -> Launch:
    """y[t] = x[t] + weight[position_ids[t]] for num_tokens rows."""
    defines = {"TL_HIDDEN": features(y), "TL_FP16": DTYPE_FLAGS[y.dtype]}
    specialised = kernel("position_embedding/cuda.cuh", "position_embedding", _THREADS, 0, defines)
    return launch(specialised, (symbol("num_tokens"),), y, x, position_ids, weight)
