"""RotaryTable on a GPU; the same launch finds each token's slot in the paged cache, and sequences that have ended."""

from __future__ import annotations

from collections.abc import Mapping

from ..cuda.lowering import Lowering, Step
from ..launch import Buffer, Launch, features, kernel, launch, symbol

# Step inputs in the order of the kernel's arguments; past_lens are written, too.
_INPUTS = ("past_lens", "position_ids", "token_slots", "cu_seqlens", "block_tables")


def rotary_table(
    cos: Buffer,
    sin: Buffer,
    slots: Buffer,
    inv_freq: Buffer,
    inputs: Mapping[str, Buffer],
    last_tokens: Buffer,
    *,
    scale: float,
    tokens_per_block: int,
) -> Launch:
    """cos, sin [num_tokens, half_dim] float32 and slots [num_tokens] int32: block * tokens_per_block + offset.

    A sequence whose last_tokens entry is negative, which it has ended with, gets a past length of 0 in ``inputs``.
    """
    half_dim = features(cos)
    specialised = kernel(
        "rotary_table/cuda.cuh", "rotary_table", half_dim, 0, {"TL_HALF_DIM": half_dim, "TL_PAGE": tokens_per_block}
    )
    sources = (*(inputs[name] for name in _INPUTS), last_tokens, inv_freq)
    extents = (symbol("num_seqs"), features(inputs["block_tables"]), scale)
    return launch(specialised, (symbol("num_tokens"),), cos, sin, slots, *sources, *extents)


def lower(op: Lowering) -> list[Step]:
    """One launch."""
    cos, sin = op.new("cos", "float32"), op.new("sin", "float32")
    how = {"scale": op.attribute("scale"), "tokens_per_block": op.tokens_per_block}
    return [rotary_table(cos, sin, op.slots, op.vector("inv_freq"), op.inputs, op.sampled.last_tokens, **how)]
