"""LowRank on a GPU: rows of a times x, then rows of b times those sums, for the adapter that each row has.

Adapters lie in slots of the executor's memory; the step lists its rows by slot (``adapter_rows`` and ``adapter_ends``).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ..cuda.lowering import Lowering
from ..launch import DTYPE_FLAGS, Buffer, Command, Extent, Launch, features, kernel, launch, symbol

_THREADS = 256
_ENDS = ("first_end", "second_end", "third_end")
# Depth of a split in steps of few rows: what the warps of a block of shrink.cuh have in flight at once.
_SPLIT_DEPTH, _MOST_SPLITS = 1024, 16
_ROWS_OF_ONE_SPLIT = 1024  # rows of a step that has enough blocks without splits
_ROWS_OF_A_BLOCK = 64  # in larger steps, a block takes several tiles of rows
_UNIT_COLUMNS, _MOST_UNITS = 32, 4
_OUTPUTS_OF_A_UNIT = 4096  # outputs of a product that has enough blocks if each warp has one unit
_VECTOR = 8  # 16-bit elements of one load or store
_SLOTS, _STRIDE = symbol("num_loras"), symbol("adapter_stride")


@dataclass(frozen=True)
class AdapterMatrices:
    """The slots in which the executor keeps adapters' matrices for one product, whose parts have ``widths`` outputs.

    A slot has all matrices of an adapter in one piece: slots are ``adapter_stride`` apart in each of the three.
    ``a`` is [slots, parts * max_rank, in], ``b`` [slots, out, max_rank], ``ranks`` [slots, parts]: multiples of 8, 0
    where an adapter leaves a part alone.
    """

    a: Buffer
    b: Buffer
    ranks: Buffer
    widths: tuple[int, ...]

    @property
    def max_rank(self) -> int:
        """The highest rank of an adapter."""
        rank = self.b.shape[-1]
        assert isinstance(rank, int)
        return rank

    @property
    def columns(self) -> int:
        """The number of sums of a row, for all parts."""
        return len(self.widths) * self.max_rank


@dataclass(frozen=True)
class AdapterRows:
    """The ``count`` rows of a step: ``rows`` lists them by adapter slot, and ``ends`` has the end of each slot's rows.

    Rows without an adapter come last.
    """

    rows: Buffer
    ends: Buffer
    count: Extent

    @property
    def blocks(self) -> Extent:
        """The number of blocks among which the rows of a slot are divided."""
        ((name, multiplier, divisor),) = self.count.terms
        return symbol(name, multiplier, divisor * _ROWS_OF_A_BLOCK)


def num_splits(in_features: int, max_rows: int) -> int:
    """The number of splits of the depth, chosen so that steps of few rows keep many multiprocessors busy."""
    return max(1, min(in_features // _SPLIT_DEPTH, _MOST_SPLITS, _ROWS_OF_ONE_SPLIT // max_rows))


def shrink(projected: Buffer, x: Buffer, slots: AdapterMatrices, rows: AdapterRows) -> Launch:
    """projected [rows, splits, parts * max_rank] = x @ a.T, each split over its part of the depth."""
    splits = _splits(projected)
    defines = {"TL_IN": features(x), **_shared_defines(slots, splits), "TL_FP16": DTYPE_FLAGS[x.dtype]}
    specialised = kernel("low_rank/shrink.cuh", "low_rank_shrink", _THREADS, 0, defines)
    columns = 16 if slots.max_rank % 16 == 0 else 8  # columns per block
    grid = (splits * (slots.columns // columns), _SLOTS, rows.blocks)
    operands = (projected, x, slots.a, slots.ranks, rows.rows, rows.ends)
    return launch(specialised, grid, *operands, _SLOTS, _STRIDE, rows.count)


def expand(y: Buffer, projected: Buffer, slots: AdapterMatrices, rows: AdapterRows, residual: Buffer | None) -> Launch:
    """y = [residual +] b @ projected; rows without an adapter get the residual, or 0."""
    defines = {f"TL_OUT_{part}": width for part, width in enumerate((*slots.widths, 0, 0)[:3])}
    defines |= _shared_defines(slots, _splits(projected))
    units = max(1, min(_MOST_UNITS, features(y) // _OUTPUTS_OF_A_UNIT))
    defines |= {"TL_UNITS": units, "TL_RESIDUAL": int(residual is not None), "TL_FP16": DTYPE_FLAGS[y.dtype]}
    specialised = kernel("low_rank/expand.cuh", "low_rank_expand", _THREADS, 0, defines)
    warps = sum(-(-width // (units * _UNIT_COLUMNS)) for width in slots.widths)
    grid = (-(-warps * 32 // _THREADS), _SLOTS + Extent(1), rows.blocks)
    operands = (y, residual, projected, slots.b, slots.ranks, rows.rows, rows.ends)
    return launch(specialised, grid, *operands, _SLOTS, _STRIDE, rows.count)


def lower(op: Lowering) -> list[Command]:
    """Launch both kernels. ``y`` is 16-bit and includes the ``residual`` if there is one."""
    x, y = op.rows("x"), op.new("y")
    ends = [0, *(op.attribute(name) for name in _ENDS[: op.attribute("num_parts")])]
    widths = tuple(end - begin for begin, end in pairwise(ends))
    if any(size % _VECTOR for size in (features(x), *widths)):
        op.refuse(
            f"an adapter multiplies rows of {features(x)} elements and yields {', '.join(map(str, widths))}, and "
            f"the GPU kernels move {_VECTOR} at a time: expected multiples of {_VECTOR}; leave max_lora_rank out"
        )
    slots = op.adapters(features(x), widths)
    rows = AdapterRows(op.step_input("adapter_rows"), op.step_input("adapter_ends"), op.num_rows("y"))
    shape = (op.extents("y")[0], num_splits(features(x), op.max_tokens), slots.columns)
    projected = Buffer(f"{op.name}.projected", "float32", shape)
    return [shrink(projected, x, slots, rows), expand(y, projected, slots, rows, op.optional_rows("residual"))]


def _splits(projected: Buffer) -> int:
    splits = projected.shape[1]
    assert isinstance(splits, int)
    return splits


def _shared_defines(slots: AdapterMatrices, splits: int) -> dict[str, int]:
    parts = len(slots.widths)
    return {"TL_PARTS": parts, "TL_MAX_RANK": slots.max_rank, "TL_SPLITS": splits, "TL_THREADS": _THREADS}
