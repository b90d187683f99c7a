"""CausalConv on a GPU."""

from __future__ import annotations

from ..cuda.activation import ACTIVATION_FLAGS
from ..cuda.columns import Columns
from ..cuda.lowering import Lowering
from ..cuda.state_places import StatePlaces
from ..launch import DTYPE_FLAGS, Command, features, kernel, launch, symbol

_THREADS = 128
_MOST_TOKENS = 16  # successive tokens of a block: of long prompts few inputs are read twice
_MANY_BLOCKS = 256  # of the same channels: a block that has tokens of many sequences reads one state after the other
_MAX_WIDTH = 16  # its last inputs are in registers


def lower(op: Lowering) -> list[Command]:
    """Launch one kernel, of which a thread has two or four channels of some successive tokens."""
    x, y, weight = Columns.of(op, "x", in_pairs=True), op.new("y"), op.matrix("weight")
    width = features(weight)
    if not 2 <= width <= _MAX_WIDTH:
        op.refuse(f"its kernel has {width} taps, expected 2 to {_MAX_WIDTH}: build for --target cpu")
    tokens = 1 if op.decode else min(max(op.max_tokens // _MANY_BLOCKS, 1), _MOST_TOKENS)
    channels, of_thread = features(y), _channels_of_thread(features(y), x.pitch, op.attribute("x_first"))
    defines = {"TL_CHANNELS": channels, "TL_OF_THREAD": of_thread, "TL_X_PITCH": x.pitch, "TL_WIDTH": width}
    defines |= {"TL_TOKENS": tokens, "TL_THREADS": _THREADS}
    places, weights = StatePlaces.of(op, "conv_state"), (weight, op.optional_vector("bias"))
    defines |= {"TL_ACTIVATION": ACTIVATION_FLAGS[op.attribute("activation")], "TL_FP16": DTYPE_FLAGS[y.dtype]}
    defines |= places.defines()
    defines["TL_SLOTS"] = width - 1 + op.attribute("taken_back")
    specialised = kernel("causal_conv/cuda.cuh", "causal_conv", _THREADS, 0, defines)
    extents = (symbol("num_seqs"), symbol("num_tokens"))
    grid = (-(-channels // (of_thread * _THREADS)), symbol("num_tokens", 1, tokens))
    return [launch(specialised, grid, y, *places.arguments(), x.operand, *weights, *extents)]


def _channels_of_thread(channels: int, pitch: int, first: int) -> int:
    """Four where vectors of as many are aligned, in states too: these begin at multiples of eight words if they can."""
    return 4 if channels % 8 == 0 and pitch % 4 == 0 and first % 4 == 0 else 2
