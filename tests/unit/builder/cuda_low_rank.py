"""LoRA kernels in numpy, and the way an executor fills the slots of adapters."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from tests.unit.builder.cuda_kernels import Grid, Macros, Pointer, at, blocks_at, half_type, kernel
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


def _of_slots(first: Pointer, dtype: type, num_slots: int, stride: int, *shape: int) -> np.ndarray:
    """The matrices [slots, *shape] of all slots, which are ``stride`` units of 256 bytes apart."""
    return blocks_at(first, dtype, 256 * stride, *shape)[:num_slots]


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
    stride: int,
    num_rows: int,
) -> None:
    """The first split holds a row's sums, the others hold zeros."""
    parts, rank, size = macros["TL_PARTS"], macros["TL_MAX_RANK"], macros["TL_IN"]
    tile = 16 if rank % 16 == 0 else 8
    assert grid == (macros["TL_SPLITS"] * parts * rank // tile, num_slots, -(-num_rows // _BLOCK_ROWS))
    source = at(x, half_type(macros), num_rows, size).astype(np.float64)
    sums = at(projected, np.float32, num_rows, macros["TL_SPLITS"], parts, rank)
    for slot, own in list(_groups(num_slots, num_rows, rows, ends))[:-1]:
        for part, count in enumerate(_of_slots(ranks, np.int32, num_slots, stride, parts)[slot]):
            matrix = _of_slots(a, half_type(macros), num_slots, stride, parts, rank, size)[slot, part, :count]
            matrix = matrix.astype(np.float64)
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
    stride: int,
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
            count = _of_slots(ranks, np.int32, num_slots, stride, parts)[slot, part]
            own_b = _of_slots(b, half, num_slots, stride, sum(widths), rank)[slot]
            matrix = own_b[begin : begin + width, :count].astype(np.float64)
            rounded = sums[own, part, :count].astype(half).astype(np.float64)
            result[np.ix_(own, range(begin, begin + width))] += rounded @ matrix.T
            begin += width
    at(y, half, *result.shape)[...] = result


def fill_slot(plan: Plan, memory: np.ndarray, slot: int, pairs: Mapping[int, Pair], half: type) -> None:
    """Write an adapter's matrices a [rank, in] and b [rank, out] of each projection number, as the executor does."""
    assert plan.cuda is not None
    number, own = 0, memory[slot * 256 * plan.symbols["adapter_stride"] :]
    for product in plan.cuda.adapted:
        tensors = [plan.tensors[index] for index in (product.a, product.b, product.ranks)]
        dtypes = (half, half, np.int32)
        a, b, ranks = (
            at(own[tensor.offset :], dtype, *_extents(tensor.shape))
            for tensor, dtype in zip(tensors, dtypes, strict=True)
        )
        rank = b.shape[-1]
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
