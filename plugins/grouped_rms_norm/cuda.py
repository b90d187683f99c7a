"""GroupedRmsNorm on a GPU."""

from __future__ import annotations

from ..cuda.columns import Columns
from ..cuda.lowering import Lowering
from ..launch import DTYPE_FLAGS, Command, features, kernel, launch

_PAIRS_OF_THREAD = 4  # which stay in registers, if a block may have as many threads as that takes
_MAX_THREADS, _MAX_GROUP = 512, 16384


def lower(op: Lowering) -> list[Command]:
    """Launch one kernel with a block for each group of a row."""
    x, y = op.rows("x"), op.new("y")
    gate = Columns.of(op, "gate", in_pairs=True) if op.has("gate") else None
    groups, size = (extent for extent in op.extents("weight") if isinstance(extent, int))
    if size % 2 or size > _MAX_GROUP:
        expected = f"expected an even number up to {_MAX_GROUP}"
        op.refuse(f"its groups have {size} features, {expected}: build for --target cpu")
    threads = min(32 * -(-size // (2 * 32 * _PAIRS_OF_THREAD)), _MAX_THREADS)
    defines = {"TL_FEATURES": features(y), "TL_GROUPS": groups, "TL_THREADS": threads}
    defines |= {"TL_GATE_FIRST": int(op.attribute("order") == "gate_first"), "TL_FP16": DTYPE_FLAGS[x.dtype]}
    defines["TL_GATE_PITCH"] = 0 if gate is None else gate.pitch
    specialised = kernel("grouped_rms_norm/cuda.cuh", "grouped_rms_norm", threads, 0, defines)
    operands = (y, x, None if gate is None else gate.operand, op.vector("weight"), op.attribute("epsilon"))
    return [launch(specialised, (op.num_rows("y"), groups), *operands)]
