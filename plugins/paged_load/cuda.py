"""PagedLoad on a GPU."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..launch import Command, features, kernel, launch, symbol

_THREADS = 128
_STEP_INPUTS = ("position_ids", "cu_seqlens", "block_tables")  # in the order of the kernel's arguments


def lower(op: Lowering) -> list[Command]:
    """y[t] = the row of the cache before slots[t], of 16-bit elements, for num_tokens tokens."""
    y = op.new("y")
    cache = op.cache("cache", op.tokens_per_block, features(y))
    defines: dict[str, int | str] = {"TL_HIDDEN": features(y), "TL_PAGE": op.tokens_per_block}
    specialised = kernel("paged_load/cuda.cuh", "paged_load", _THREADS, 0, defines)
    slots = op.rows("slots")
    num_groups = slots.shape[0]
    assert isinstance(num_groups, int)
    inputs = (slots, *(op.step_input(name) for name in _STEP_INPUTS))
    extents = (symbol("num_seqs"), symbol("max_blocks_per_seq", num_groups))
    return [launch(specialised, (symbol("num_tokens"),), y, cache, *inputs, *extents)]
