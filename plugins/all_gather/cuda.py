"""AllGather on GPUs, through each other's memory or by NCCL."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..cuda.ranks import BARRIER_BLOCKS
from ..launch import Buffer, Collective, Command, features, kernel, launch

_SOURCE = "all_gather/cuda.cuh"
_THREADS, _BARRIER_THREADS = 512, 32


def lower(op: Lowering) -> list[Command]:
    """Launch one kernel. Without the operand ``ranks``, it runs after NCCL and puts the ranks' rows side by side."""
    x = op.rows("x")
    if not op.has("ranks"):
        return _by_library(op, x, op.result("y"))
    where, defines = (op.state("ranks"), op.state("rank_flags"), op.collective), {"TL_BARRIER_BLOCKS": BARRIER_BLOCKS}
    if op.attribute("in_place"):
        op.place("y", x)
        return [launch(kernel(_SOURCE, "rows_are_there", _BARRIER_THREADS, 0, defines), (1,), *where)]
    y = op.result("y")
    if x.dtype != "float32" or y.dtype != "float32":
        op.refuse(f"x is {x.dtype} and y is {y.dtype}, expected float32: only logits are gathered")
    specialised = kernel(_SOURCE, "all_gather", _THREADS, 0, defines)
    return [launch(specialised, (BARRIER_BLOCKS,), y, x, *where, op.num_rows("y"), features(x), features(y))]


def _by_library(op: Lowering, x: Buffer, y: Buffer) -> list[Command]:
    rows, part = op.num_rows("y"), features(x)
    gathered = Buffer(f"{op.name}.gathered", x.dtype, (op.extents("x")[0], op.num_ranks * part))
    specialised = kernel("all_gather/side_by_side.cuh", "side_by_side", _THREADS, 0, {})
    return [
        Collective("all_gather_rows", x, gathered, rows),
        launch(specialised, (rows, op.num_ranks), y, gathered, rows, part, features(y)),
    ]
