"""AllGather on GPUs that reach each other's memory."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..cuda.ranks import MEETING_BLOCKS
from ..launch import Command, features, kernel, launch

_SOURCE = "all_gather/cuda.cuh"
_THREADS, _MEETING_THREADS = 512, 32


def lower(op: Lowering) -> list[Command]:
    """One launch."""
    x, where = op.rows("x"), (op.state("ranks"), op.state("rank_flags"), op.collective)
    defines = {"TL_MEETING_BLOCKS": MEETING_BLOCKS}
    if op.attribute("in_place"):
        op.place("y", x)
        return [launch(kernel(_SOURCE, "rows_are_there", _MEETING_THREADS, 0, defines), (1,), *where)]
    y = op.result("y")
    if x.dtype != "float32" or y.dtype != "float32":
        op.refuse("expected logits, which alone are gathered")
    specialised = kernel(_SOURCE, "all_gather", _THREADS, 0, defines)
    return [launch(specialised, (MEETING_BLOCKS,), y, x, *where, op.num_rows("y"), features(x), features(y))]
