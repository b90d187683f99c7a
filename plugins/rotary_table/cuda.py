"""RotaryTable on a GPU; the same launch finds each token's slot in the paged cache."""

from __future__ import annotations

from ..launch import Buffer, Launch, features, kernel, launch, symbol


def rotary_table(
    cos: Buffer,
    sin: Buffer,
    slots: Buffer,
    position_ids: Buffer,
    inv_freq: Buffer,
    cu_seqlens: Buffer,
    block_tables: Buffer,
    *,
    scale: float,
    tokens_per_block: int,
) -> Launch:
    """cos, sin [num_tokens, half_dim] float32 and slots [num_tokens] int32: block * tokens_per_block + offset."""
    half_dim = features(cos)
    specialised = kernel(
        "rotary_table/cuda.cuh", "rotary_table", half_dim, 0, {"TL_HALF_DIM": half_dim, "TL_PAGE": tokens_per_block}
    )
    tables = (position_ids, inv_freq, cu_seqlens, block_tables, symbol("num_seqs"), features(block_tables), scale)
    return launch(specialised, (symbol("num_tokens"),), cos, sin, slots, *tables)
