"""GatedDeltaRule on a GPU."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..cuda.state_places import StatePlaces
from ..launch import DTYPE_FLAGS, Command, kernel, launch, symbol

_THREADS, _COLUMNS = 128, 32  # of a block
_MAX_KEY_DIM = 256  # a block's columns are in registers


def lower(op: Lowering) -> list[Command]:
    """Launch one kernel with a block for each sequence, head, and some columns of the head's state."""
    y, rows = op.new("y"), tuple(op.rows(name) for name in ("qkv", "a", "b"))
    heads, key_dim, value_dim = (extent for extent in op.extents("recurrent_state")[1:] if isinstance(extent, int))
    if key_dim > _MAX_KEY_DIM:
        op.refuse(f"its keys have {key_dim} elements, expected at most {_MAX_KEY_DIM}: build for --target cpu")
    defines = {"TL_KEY_HEADS": op.attribute("num_key_heads"), "TL_VALUE_HEADS": heads, "TL_KEY_DIM": key_dim}
    places, of_heads = StatePlaces.of(op, "recurrent_state"), (op.vector("a_log"), op.vector("dt_bias"))
    defines |= {"TL_VALUE_DIM": value_dim, "TL_FP16": DTYPE_FLAGS[y.dtype], **places.defines()}
    specialised = kernel("gated_delta_rule/cuda.cuh", "gated_delta_rule", _THREADS, 0, defines)
    numbers = (op.attribute("scale"), op.attribute("norm_epsilon"))
    grid = (-(-value_dim // _COLUMNS), heads, symbol("num_seqs"))
    return [launch(specialised, grid, y, *places.arguments(), *rows, *of_heads, *numbers)]
