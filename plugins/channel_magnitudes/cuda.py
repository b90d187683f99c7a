"""ChannelMagnitudes on a GPU."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..launch import DTYPE_FLAGS, Buffer, Command, Extent, Launch, features, kernel, launch

_COLUMNS, _THREADS = 64, 256  # columns and threads of a block


def channel_magnitudes(y: Buffer, x: Buffer, rows: Extent) -> Launch:
    """y [2, features] = the largest magnitude and the sum of magnitudes of each feature over ``rows`` of x."""
    defines = {"TL_FEATURES": features(x), "TL_FP16": DTYPE_FLAGS[x.dtype]}
    specialised = kernel("channel_magnitudes/cuda.cuh", "channel_magnitudes", _THREADS, 0, defines)
    return launch(specialised, (-(-features(x) // _COLUMNS),), y, x, rows)


def lower(op: Lowering) -> list[Command]:
    """Launch one kernel."""
    return [channel_magnitudes(op.new("y", "float32"), op.rows("x"), op.num_rows("x"))]
