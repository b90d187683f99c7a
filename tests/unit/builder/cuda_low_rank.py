"""LoRA kernels in numpy, and the way an executor fills the slots of adapters."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from tests.unit.builder.cuda_kernels import Grid, Macros, Pointer, at, half_type, kernel
from trtllm_lite.engine.plan import Plan
from trtllm_lite.plugins.low_rank.reference import Pair

_BLOCK_ROWS, _TILE_ROWS = 64, 16


def _groups(num_slots: int, num_rows: int, rows: Pointer, ends: Pointer) -> Iterator[tuple[int, np.ndarray]]:
    """Each slot with the rows that use it; the last group has the rows without a slot."""
    order = at(rows, np.int32, num_rows)
    assert sorted(order) == list(range(num_rows))
    bounds = [0, *at(ends, np.int32, num_slots), num_rows]
    for slot, (first, last) in enumerate(pairwise(bounds)):
        yield slot, order[first:last]


@kernel
def low_rank_shrink(
    macros: Macros,
    grid: Grid,
    projected: Pointer,
    x: Pointer,
    a: Pointer,
    ranks: Pointer,
    rows: Pointer,
    ends: Pointer,
    num_slots: int,
    num_rows: int,
) -> None:
    """The first split holds a row's sums, the others hold zeros."""
    parts, rank, size = macros["TL_PARTS"], macros["TL_MAX_RANK"], macros["TL_IN"]
    tile = 16 if rank % 16 == 0 else 8
    assert grid == (macros["TL_SPLITS"] * parts * rank // tile, num_slots, -(-num_rows // _BLOCK_ROWS))
    source = at(x, half_type(macros), num_rows, size).astype(np.float64)
    sums = at(projected, np.float32, num_rows, macros["TL_SPLITS"], parts, rank)
    for slot, own in list(_groups(num_slots, num_rows, rows, ends))[:-1]:
        for part, count in enumerate(at(ranks, np.int32, num_slots, parts)[slot]):
            matrix = at(a, half_type(macros), num_slots, parts, rank, size)[slot, part, :count].astype(np.float64)
            sums[own, :, part, :count] = 0
            sums[own, 0, part, :count] = source[own] @ matrix.T


@kernel
def low_rank_expand(
    macros: Macros,
    grid: Grid,
    y: Pointer,
    residual: Pointer | None,
    projected: Pointer,
    b: Pointer,
    ranks: Pointer,
    rows: Pointer,
    ends: Pointer,
    num_slots: int,
    num_rows: int,
) -> None:
    half, rank, parts = half_type(macros), macros["TL_MAX_RANK"], macros["TL_PARTS"]
    widths = [macros[f"TL_OUT_{part}"] for part in range(3)]
    warps = sum(-(-width // (32 * macros["TL_UNITS"])) for width in widths)
    assert grid == (-(-warps * 32 // macros["TL_THREADS"]), num_slots + 1, -(-num_rows // _BLOCK_ROWS))
    result = np.zeros((num_rows, sum(widths)))
    if macros["TL_RESIDUAL"]:
        result += at(residual, half, *result.shape).astype(np.float64)
    sums = at(projected, np.float32, num_rows, macros["TL_SPLITS"], parts, rank).sum(1, dtype=np.float64)
    for slot, own in list(_groups(num_slots, num_rows, rows, ends))[:-1]:
        begin = 0
        for part, width in enumerate(widths[:parts]):
            count = at(ranks, np.int32, num_slots, parts)[slot, part]
            matrix = at(b, half, num_slots, sum(widths), rank)[slot, begin : begin + width, :count].astype(np.float64)
            rounded = sums[own, part, :count].astype(half).astype(np.float64)
            result[np.ix_(own, range(begin, begin + width))] += rounded @ matrix.T
            begin += width
    at(y, half, *result.shape)[...] = result


def fill_slot(
    plan: Plan, memory: Mapping[int, np.ndarray], slot: int, pairs: Mapping[int, Pair], half: type, num_slots: int
) -> None:
    """Write an adapter's matrices a [rank, in] and b [rank, out] of each projection number, as the executor does."""
    assert plan.cuda is not None
    number = 0
    for product in plan.cuda.adapted:
        columns, size = _extents(plan.tensors[product.a].shape)
        out, rank = _extents(plan.tensors[product.b].shape)
        a = at(memory[product.a], half, num_slots, columns, size)[slot]
        b = at(memory[product.b], half, num_slots, out, rank)[slot]
        ranks = at(memory[product.ranks], np.int32, num_slots, len(product.widths))[slot]
        begin = 0
        for part, width in enumerate(product.widths):
            pair = pairs.get(number)
            ranks[part] = 0 if pair is None else -(-len(pair[0]) // 8) * 8
            if pair is not None:
                _fill(a[part * rank : part * rank + ranks[part]], pair[0])
                _fill(b[begin : begin + width, : ranks[part]].T, pair[1])
            begin, number = begin + width, number + 1


def _fill(target: np.ndarray, rows: np.ndarray) -> None:
    target[...] = 0
    target[: len(rows)] = rows


def _extents(shape: Sequence[int | str]) -> tuple[int, ...]:
    return tuple(extent for extent in shape if isinstance(extent, int))


def row_lists(adapters: Sequence[int], num_slots: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows sorted by slot, those without an adapter (-1) last, and the end of each slot's rows."""
    keys = np.array([slot if slot >= 0 else num_slots for slot in adapters])
    ends = np.searchsorted(np.sort(keys), np.arange(num_slots), side="right")
    return np.argsort(keys, kind="stable").astype(np.int32), ends.astype(np.int32)
