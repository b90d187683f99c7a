"""CacheSlots on a GPU: once per step, before all layers."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..launch import Command, kernel, launch, symbol

_THREADS = 128
# The step inputs in the order of the kernel's arguments; the kernel also writes past_lens.
_STEP_INPUTS = ("past_lens", "position_ids", "token_slots", "cu_seqlens", "block_tables")


def lower(op: Lowering) -> list[Command]:
    """slots[g, t] = block * tokens_per_block + offset for num_tokens tokens; past_lens of 0 for ended sequences."""
    slots = op.new("slots", "int32")
    num_groups = slots.shape[0]
    assert isinstance(num_groups, int)
    defines = {"TL_PAGE": op.attribute("tokens_per_block"), "TL_GROUPS": num_groups}
    specialised = kernel("cache_slots/cuda.cuh", "cache_slots", _THREADS, 0, defines)
    inputs = [op.step_input(name) for name in _STEP_INPUTS]
    states = (op.state("last_tokens"), op.state("ranks") if op.has("ranks") else None)
    extents = (symbol("num_tokens"), symbol("num_seqs"), symbol("max_blocks_per_seq"))
    grid = (symbol("num_tokens", 1, _THREADS),)
    return [launch(specialised, grid, slots, *inputs, *states, *extents)]
