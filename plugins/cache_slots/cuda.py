"""Finds each token's slot in the paged cache on a GPU, and sequences that have ended: once per step."""

from __future__ import annotations

from collections.abc import Mapping

from ..launch import Buffer, Launch, kernel, launch, symbol

_THREADS = 128
# Step inputs in the order of the kernel's arguments; past_lens are written, too.
_INPUTS = ("past_lens", "position_ids", "token_slots", "cu_seqlens", "block_tables")


def cache_slots(slots: Buffer, inputs: Mapping[str, Buffer], last_tokens: Buffer, tokens_per_block: int) -> Launch:
    """Slots [cache groups, num_tokens] int32: block * tokens_per_block + offset.

    A sequence whose last_tokens entry is negative, which it has ended with, gets a past length of 0 in ``inputs``.
    """
    num_groups = slots.shape[0]
    assert isinstance(num_groups, int)
    defines = {"TL_PAGE": tokens_per_block, "TL_GROUPS": num_groups}
    specialised = kernel("cache_slots/cuda.cuh", "cache_slots", _THREADS, 0, defines)
    max_blocks = inputs["block_tables"].shape[-1]
    assert isinstance(max_blocks, int)
    extents = (symbol("num_tokens"), symbol("num_seqs"), max_blocks)
    sources = (*(inputs[name] for name in _INPUTS), last_tokens)
    return launch(specialised, (symbol("num_tokens", 1, _THREADS),), slots, *sources, *extents)
