"""GatedRmsNorm on a GPU."""

from __future__ import annotations

from ..cuda.columns import Columns
from ..cuda.lowering import Lowering
from ..launch import DTYPE_FLAGS, Command, features, kernel, launch

_THREADS = 256
_WARPS = _THREADS // 32


def lower(op: Lowering) -> list[Command]:
    """Launch one kernel with a warp for each group of a row."""
    x, gate, y = op.rows("x"), Columns.of(op, "gate", in_pairs=True), op.new("y")
    (group,) = op.extents("weight")
    assert isinstance(group, int)
    if group % 2:
        op.refuse(f"its groups have {group} features, expected an even number: build for --target cpu")
    defines = {"TL_FEATURES": features(y), "TL_GROUP": group, "TL_THREADS": _THREADS, "TL_FP16": DTYPE_FLAGS[x.dtype]}
    defines |= {"TL_GATE_PITCH": gate.pitch, "TL_SIGMOID": int(op.attribute("activation") == "sigmoid")}
    specialised = kernel("gated_rms_norm/cuda.cuh", "gated_rms_norm", _THREADS, 0, defines)
    grid = (op.num_rows("y"), -(-features(y) // (group * _WARPS)))
    return [launch(specialised, grid, y, x, gate.operand, op.vector("weight"), op.attribute("epsilon"))]
