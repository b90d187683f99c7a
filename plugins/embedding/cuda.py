"""Embedding on a GPU."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..launch import DTYPE_FLAGS, Command, features, kernel, launch, symbol

_THREADS = 128


def lower(op: Lowering) -> list[Command]:
    """y[t] = scale * weight[id of t] for num_tokens rows; the id is last_tokens[token_slots[t]] if that slot is >= 0.

    A negative number in last_tokens is the complement of the id; one in token_ids is the complement of the number of a
    row of ``token_rows``, which the result is then. Encoders have no slots.
    """
    table, y = op.matrix("weight"), op.new("y")
    defines = {"TL_HIDDEN": features(y), "TL_FP16": DTYPE_FLAGS[y.dtype]}
    specialised = kernel("embedding/cuda.cuh", "embedding", _THREADS, 0, defines)
    slots = (op.step_input("token_slots"), op.state("last_tokens")) if op.has("token_slots") else (None, None)
    ids = (op.step_input("token_ids"), *slots)
    ranks, (vocab, _) = op.state("ranks") if op.has("ranks") else None, table.shape
    assert isinstance(vocab, int)
    rows = op.optional_rows("token_rows")
    return [launch(specialised, (symbol("num_tokens"),), y, *ids, table, ranks, vocab, op.attribute("scale"), rows)]
