"""GatedRmsNorm on a GPU."""

from __future__ import annotations

from ..cuda.columns import Columns
from ..cuda.lowering import Lowering
from ..launch import DTYPE_FLAGS, Command, features, kernel, launch

_THREADS = 256
_VECTOR = 8  # elements


def lower(op: Lowering) -> list[Command]:
    """Launch one kernel with some lanes of a warp for each group of a row."""
    x, gate, y = op.rows("x"), Columns.of(op, "gate", in_pairs=True), op.new("y")
    (group,) = op.extents("weight")
    assert isinstance(group, int)
    if group % 2:
        op.refuse(f"its groups have {group} features, expected an even number: build for --target cpu")
    lanes = lanes_of_group(group, gate.pitch, op.attribute("gate_first"))
    defines = {"TL_FEATURES": features(y), "TL_GROUP": group, "TL_THREADS": _THREADS, "TL_FP16": DTYPE_FLAGS[x.dtype]}
    defines |= {"TL_GATE_PITCH": gate.pitch, "TL_SIGMOID": int(op.attribute("activation") == "sigmoid"), **lanes}
    specialised = kernel("gated_rms_norm/cuda.cuh", "gated_rms_norm", _THREADS, 0, defines)
    grid = (op.num_rows("y"), -(-features(y) // (group * (_THREADS // lanes["TL_LANES"]))))
    return [launch(specialised, grid, y, x, gate.operand, op.vector("weight"), op.attribute("epsilon"))]


def lanes_of_group(group: int, gate_pitch: int, gate_first: int) -> dict[str, int]:
    """The macros that say how lanes of a warp share the even number of features of a group.

    Rows of the gate are ``gate_pitch`` elements apart, and the operator reads them from ``gate_first`` on.
    """
    vector = 2 if group % _VECTOR or gate_pitch % _VECTOR or gate_first % _VECTOR else _VECTOR
    return {"TL_VECTOR": vector, "TL_LANES": min(32, 1 << (group // vector - 1).bit_length())}
