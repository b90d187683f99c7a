"""CausalConv on a GPU."""

from __future__ import annotations

from ..cuda.activation import ACTIVATION_FLAGS
from ..cuda.columns import Columns
from ..cuda.lowering import Lowering
from ..cuda.state_places import StatePlaces
from ..launch import DTYPE_FLAGS, Command, features, kernel, launch, symbol

_THREADS = 128
_MOST_TOKENS = 32  # successive tokens of a block: of long prompts few inputs are read twice
_MANY_BLOCKS = 128  # of the same channels: a block that has tokens of many sequences reads one state after the other
_MAX_WIDTH = 16  # its last inputs are in registers


def lower(op: Lowering) -> list[Command]:
    """Launch one kernel, of which a thread has two channels of some successive tokens."""
    x, y, weight = Columns.of(op, "x", in_pairs=True), op.new("y"), op.matrix("weight")
    width = features(weight)
    if not 2 <= width <= _MAX_WIDTH:
        op.refuse(f"its kernel has {width} taps, expected 2 to {_MAX_WIDTH}: build for --target cpu")
    tokens = 1 if op.decode else min(max(op.max_tokens // _MANY_BLOCKS, 1), _MOST_TOKENS)
    defines = {"TL_CHANNELS": features(y), "TL_X_PITCH": x.pitch, "TL_WIDTH": width, "TL_TOKENS": tokens}
    places, weights = StatePlaces.of(op, "conv_state"), (weight, op.optional_vector("bias"))
    defines |= {"TL_ACTIVATION": ACTIVATION_FLAGS[op.attribute("activation")], "TL_FP16": DTYPE_FLAGS[y.dtype]}
    defines |= places.defines()
    defines["TL_SLOTS"] = width - 1 + op.attribute("taken_back")
    specialised = kernel("causal_conv/cuda.cuh", "causal_conv", _THREADS, 0, defines)
    extents = (symbol("num_seqs"), symbol("num_tokens"))
    grid = (-(-features(y) // (2 * _THREADS)), symbol("num_tokens", 1, tokens))
    return [launch(specialised, grid, y, *places.arguments(), x.operand, *weights, *extents)]
