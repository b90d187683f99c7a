"""GroupedLinear on a GPU: streamed for a few rows; for many, of rows that are sorted by expert, tiled and combined."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..cuda.grouped import ROW_THREADS, ExpertChoice, GroupTiling, choice_of, group_tiling, row_grid, stream_grid
from ..cuda.lowering import Lowering
from ..cuda.stream import ROWS_PER_TILE, Streaming
from ..launch import DTYPE_FLAGS, Buffer, Command, Extent, Launch, WeightBuffers, features, kernel, launch


@dataclass(frozen=True)
class Bias:
    """The bias [experts, out] of each expert, and what a sum over experts takes of it: ``ids`` and ``shares``."""

    values: Buffer
    ids: Buffer
    shares: Buffer


def stream(
    y: Buffer,
    x: Buffer,
    weight: WeightBuffers,
    chosen: Buffer,
    rows: Extent,
    how: Streaming,
    choice: ExpertChoice,
    residual: Buffer | None = None,
    bias: Bias | None = None,
) -> Launch:
    """y [rows, out] = the sum over each row's experts, which ``chosen`` lists [+ residual]; x has their shares."""
    flags = {"TL_RESIDUAL": int(residual is not None), "TL_BIAS": int(bias is not None), **choice.defines}
    flags["TL_LIST_INTS"] = choice.chosen_ints(how.tokens)
    room = how.device.shared_bytes - choice.chosen_bytes(how.tokens)
    how = replace(how, device=replace(how.device, shared_bytes=room))
    specialised = how.kernel("grouped_linear/cuda.cuh", "grouped_linear", weight, flags)
    biases = (None, None, None) if bias is None else (bias.values, bias.ids, bias.shares)
    operands = (weight.values, *weight.numbers, *biases, chosen, residual, rows)
    return launch(specialised, stream_grid(features(y) // ROWS_PER_TILE), y, x, *operands)


def tiled(
    y: Buffer, x: Buffer, weight: WeightBuffers, groups: Buffer, how: GroupTiling, bias: Buffer | None = None
) -> Launch:
    """y = x @ w.T [+ bias] of rows that are sorted by expert."""
    flags = {"TL_BIAS": int(bias is not None), "TL_RESIDUAL": 0, "TL_FLOAT_OUT": 0, "TL_ACTIVATION": 0, "TL_ROWS_ON": 0}
    specialised = how.kernel("grouped_linear/tiled.cuh", "grouped_linear_tiled", weight, flags)
    return launch(specialised, how.grid(), *how.maps(x, weight), y, *weight.numbers, None, bias, groups, 0.0)


def combine(
    y: Buffer,
    rows: Buffer,
    places: Buffer,
    shares: Buffer | None,
    num_rows: Extent,
    choice: ExpertChoice,
    residual: Buffer | None = None,
) -> Launch:
    """y = the sum over slots of [share *] row [+ residual], of ``rows`` that are sorted by expert."""
    defines = {"TL_OUT": features(y), "TL_THREADS": ROW_THREADS, "TL_RESIDUAL": int(residual is not None)}
    defines |= {"TL_SHARES": int(shares is not None), "TL_FP16": DTYPE_FLAGS[y.dtype]}
    specialised = kernel("grouped_linear/combine.cuh", "combine", ROW_THREADS, 0, defines | choice.defines)
    return launch(specialised, row_grid(num_rows, features(y)), y, rows, places, shares, residual)


def lower(op: Lowering) -> list[Command]:
    """The streaming kernel, or the tiled one and the sum of what it makes."""
    choice, weight, x, y = choice_of(op), op.weight(), op.rows("x"), op.new("y")
    residual, bias = op.optional_rows("residual"), op.optional_vector("bias")
    if op.has("chosen"):
        how = op.streaming()
        assert how is not None
        biases = None if bias is None else Bias(bias, op.rows("ids"), op.rows("shares"))
        return [stream(y, x, weight, op.rows("chosen"), op.num_rows("y"), how, choice, residual, biases)]
    rows = Buffer(f"{op.name}.sorted", op.dtype, (op.extents("y")[0], choice.top_k, features(y)))
    places, shares = op.rows("places"), op.optional_rows("shares")
    return [
        tiled(rows, x, weight, op.rows("groups"), group_tiling(op), bias),
        combine(y, rows, places, shares, op.num_rows("y"), choice, residual),
    ]
