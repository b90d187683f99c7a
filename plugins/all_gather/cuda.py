"""AllGather on GPUs that reach each other's memory."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..cuda.ranks import MEETING_BLOCKS
from ..launch import Command, features, kernel, launch

_THREADS = 512


def lower(op: Lowering) -> list[Command]:
    """One launch."""
    x, y = op.rows("x"), op.result("y")
    if x.dtype != "float32" or y.dtype != "float32":
        op.refuse("expected logits, which alone are gathered")
    specialised = kernel("all_gather/cuda.cuh", "all_gather", _THREADS, 0, {"TL_MEETING_BLOCKS": MEETING_BLOCKS})
    where = (op.state("ranks"), op.state("rank_flags"), op.collective)
    return [launch(specialised, (MEETING_BLOCKS,), y, x, *where, op.num_rows("y"), features(x), features(y))]
