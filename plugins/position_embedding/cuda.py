"""PositionEmbedding on a GPU."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..launch import DTYPE_FLAGS, Command, features, kernel, launch, symbol

_THREADS = 128


def lower(op: Lowering) -> list[Command]:
    """y[t] = x[t] + weight[position_ids[t]] for num_tokens rows; refuses sequences longer than the table."""
    table, y = op.matrix("weight"), op.new("y")
    rows = table.shape[0]
    if isinstance(rows, int) and rows < op.max_seq_len:
        op.refuse(
            f"max_seq_len is {op.max_seq_len}, and the table {table.name} has {rows} positions: set max_seq_len "
            f"(and max_input_len) to at most {rows}"
        )
    defines = {"TL_HIDDEN": features(y), "TL_FP16": DTYPE_FLAGS[y.dtype]}
    specialised = kernel("position_embedding/cuda.cuh", "position_embedding", _THREADS, 0, defines)
    return [launch(specialised, (symbol("num_tokens"),), y, op.rows("x"), op.step_input("position_ids"), table)]
