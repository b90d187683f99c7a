"""AllGather on GPUs that reach each other's memory, or in NCCL."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..cuda.ranks import MEETING_BLOCKS
from ..launch import Buffer, Collective, Command, features, kernel, launch

_THREADS = 512


def lower(op: Lowering) -> list[Command]:
    """One launch, or where ``ranks`` is no operand one that puts side by side what NCCL has gathered rank by rank."""
    x, y = op.rows("x"), op.result("y")
    if x.dtype != "float32" or y.dtype != "float32":
        op.refuse("expected logits, which alone are gathered")
    if not op.has("ranks"):
        return _by_library(op, x, y)
    specialised = kernel("all_gather/cuda.cuh", "all_gather", _THREADS, 0, {"TL_MEETING_BLOCKS": MEETING_BLOCKS})
    where = (op.state("ranks"), op.state("rank_flags"), op.collective)
    return [launch(specialised, (MEETING_BLOCKS,), y, x, *where, op.num_rows("y"), features(x), features(y))]


def _by_library(op: Lowering, x: Buffer, y: Buffer) -> list[Command]:
    rows, part = op.num_rows("y"), features(x)
    gathered = Buffer(f"{op.name}.gathered", x.dtype, (op.extents("x")[0], op.num_ranks * part))
    specialised = kernel("all_gather/side_by_side.cuh", "side_by_side", _THREADS, 0, {})
    return [
        Collective("all_gather_rows", x, gathered, rows),
        launch(specialised, (rows, op.num_ranks), y, gathered, rows, part, features(y)),
    ]
