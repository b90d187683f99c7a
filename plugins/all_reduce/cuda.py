"""AllReduce on GPUs, through each other's memory or by NCCL."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..cuda.ranks import BARRIER_BLOCKS
from ..cuda.row_norm import RowNorm
from ..cuda.row_scales import row_type
from ..launch import Collective, Command, launch


def lower(op: Lowering) -> list[Command]:
    """Launch one kernel, which also adds ``residual`` and normalizes the sum by ``weight`` where these are operands.

    Without the operand ``ranks``, NCCL computes the sum, and there is no residual or norm.
    """
    if not op.has("ranks"):
        return [Collective("all_reduce", op.rows("x"), op.new("y"), op.num_rows("y"))]
    rows, scales, count = RowNorm.of(op), op.scales("y"), op.num_rows("y")
    value, buffer = (0.0, None) if scales is None else (scales.value, scales.buffer)
    weight, epsilon = (op.vector("weight"), op.attribute("epsilon")) if op.has("weight") else (None, 0.0)
    defines = {"TL_NORM": int(op.has("weight"))}
    defines |= {"TL_Y_TYPE": row_type(scales), "TL_ROW_SCALES": int(buffer is not None)}
    norm = (rows.y, buffer, rows.total, rows.x, weight, rows.residual, epsilon, value, op.state("ranks"))
    inbox = op.state("rank_inbox")
    _, inbox_rows, others, _ = inbox.shape
    assert isinstance(inbox_rows, int)
    assert isinstance(others, int)
    if op.max_tokens <= inbox_rows:
        specialised = rows.kernel("all_reduce/push.cuh", "all_reduce_push", TL_INBOX_ROWS=inbox_rows, **defines)
        return [launch(specialised, (count,), *norm, op.state("rank_turns"), inbox, op.collective)]
    stored = {"TL_STORED": 0}
    if op.has("rank_sums"):
        _, rank_rows, _ = rows.x.shape
        assert isinstance(rank_rows, int)
        stored = {"TL_STORED": 1, "TL_RANK_ROWS": rank_rows}
    owned = {"TL_OWNED": int(op.attribute("owned")), "TL_SUM_EVERYWHERE": int(op.attribute("sum_everywhere"))}
    defines |= {"TL_RANKS": others + 1, "TL_BARRIER_BLOCKS": BARRIER_BLOCKS, **stored, **owned}
    specialised = rows.kernel("all_reduce/pull.cuh", "all_reduce_pull", **defines)
    return [launch(specialised, (BARRIER_BLOCKS,), *norm, op.state("rank_flags"), op.collective, count)]
