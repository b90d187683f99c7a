"""Embedding on a GPU."""

from __future__ import annotations

from ..launch import Buffer, Launch, features, kernel, launch, symbol

_THREADS = 128


def embedding(y: Buffer, weight: Buffer, token_ids: Buffer, token_slots: Buffer, last_tokens: Buffer) -> Launch:
    """y[t] = weight[id of t] for num_tokens rows; the id is last_tokens[token_slots[t]] where that slot is >= 0.

    A negative one is the complement of the id.
    """
    specialised = kernel("embedding/cuda.cuh", "embedding", _THREADS, 0, {"TL_HIDDEN": features(y)})
    return launch(specialised, (symbol("num_tokens"),), y, token_ids, token_slots, last_tokens, weight)
