"""Packs weights into the layouts of ``plugins/README.md`` with numpy, as the kernels read them.

Any dtype of 1, 2, 4 or 8 bytes works, those of ml_dtypes included: bytes are moved, whatever their values. Arrays of
4-bit elements are stored as arrays of bytes.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from trtllm_lite.common.nibbles import TYPES as NIBBLES
from trtllm_lite.common.nibbles import paired, unpaired

from . import spread

PANEL_WIDTH = 64
GATED_HALF = PANEL_WIDTH // 2
WORD = 8  # 4-bit elements in 32 bits; panels of 4-bit types consist of words
MMA_K = 16
_MMA_ORDER = np.arange(MMA_K).reshape(2, 4, 2).swapaxes(0, 1).reshape(-1)  # 0 1 8 9, 2 3 10 11, …
_PAIR_ORDER = np.array([0, 2, 4, 6, 1, 3, 5, 7])
_TWO_MMA_ORDER = np.arange(2 * MMA_K).reshape(2, 2, 4, 2).transpose(2, 0, 1, 3).reshape(-1)  # 0 1 8 9 16 17 24 25, …
_TWO_MMA_PAIRS = _TWO_MMA_ORDER.reshape(-1, WORD)[:, _PAIR_ORDER].reshape(-1)  # 0 8 16 24 1 9 17 25, 2 10 …
_RUNS = {"mma_k16": _MMA_ORDER, "pairs8": _PAIR_ORDER, "pairs32": _TWO_MMA_PAIRS}
_SPREAD_RUNS = {"spread_e4m3": _MMA_ORDER, "spread_e2m1": _TWO_MMA_ORDER}  # the order of elements in words
_ORDERS = _RUNS | _SPREAD_RUNS
NUMBER_ROWS = 8
RANKS = {"panel64": 2, "gated_panel64": 3}  # axes of a matrix in panels; there may be one more, of experts


def packed_shape(logical_shape: Sequence[int], layout: str, dtype: DTypeLike = np.float32) -> tuple[int, ...]:
    """Shape of the stored array: ``[panels, K, 64]`` for panels, the logical shape for ``row_major``.

    Matrices of several experts, which have one more leading axis, are stored as ``[experts, panels, K, 64]``.

    4-bit elements are stored in bytes: ``[panels, K/8, 256]``, ``[..., K/2]``. Raises ``ValueError`` if the layout is
    unknown or does not hold arrays of that shape.
    """
    in_words = np.dtype(dtype) in NIBBLES
    match layout, tuple(logical_shape):
        case "row_major", shape if not in_words:
            return shape
        case "row_major", (*rows, depth) if depth % 2 == 0:
            return (*rows, depth // 2)
        case "mma_k16" | "spread_e4m3", (*_, depth) if depth % MMA_K == 0 and not in_words:
            return tuple(logical_shape)
        case "pairs8" | "pairs32" | "spread_e2m1", (*rows, depth) if depth % len(_ORDERS[layout]) == 0 and in_words:
            return (*rows, depth // 2)
        case "rows8", (*parts, rows, blocks) if rows % NUMBER_ROWS == 0 and not in_words:
            return (*parts, rows // NUMBER_ROWS, blocks, NUMBER_ROWS)
        case ("panel64", (experts, *matrix)) | ("gated_panel64", (experts, *matrix)) if len(matrix) == RANKS[layout]:
            return (experts, *packed_shape(matrix, layout, dtype))
        case ("panel64", (features, depth)) | ("gated_panel64", (2, features, depth)):
            panels = -(-features // (PANEL_WIDTH if layout == "panel64" else GATED_HALF))
            if not in_words:
                return (panels, depth, PANEL_WIDTH)
            if depth % WORD == 0:
                return (panels, depth // WORD, PANEL_WIDTH * WORD // 2)
    raise ValueError(f"layout {layout!r} cannot hold an array of {np.dtype(dtype)} of shape {tuple(logical_shape)}")


def _as_bits(array: np.ndarray, in_words: bool) -> np.ndarray:
    """View the memory as unsigned integers, because numpy copies arrays of ml_dtypes element by element."""
    return array.view("u4" if in_words else f"u{array.dtype.itemsize}")


def _in_order(array: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Reorder each run of ``len(order)`` elements of the last axis."""
    runs = array.reshape(*array.shape[:-1], -1, len(order))
    return np.ascontiguousarray(runs[..., order].reshape(array.shape))


def pack(array: np.ndarray, layout: str) -> np.ndarray:
    """Store a logical weight ``[N, K]`` (panel64) or ``[2, I, K]`` (gated_panel64) as C-contiguous ``[panels, K, 64]``.

    Features past the end of the last panel are zero. The result has the shape :func:`packed_shape`.
    """
    shape = packed_shape(array.shape, layout, array.dtype)
    if layout in _RUNS:
        return paired(_in_order(array.view("u1"), _RUNS[layout]).view(array.dtype))
    if layout in _SPREAD_RUNS:
        words = paired(_in_order(array.view("u1"), _SPREAD_RUNS[layout]).view(array.dtype))
        return spread.spread(words.view("u1"), layout).view(words.dtype)
    if array.ndim > RANKS.get(layout, array.ndim):
        return _pack_each(array, layout, shape)
    stored = np.ascontiguousarray(paired(array))
    if layout == "row_major":
        return stored
    if layout == "rows8":
        return np.ascontiguousarray(stored.reshape(*shape[:-2], NUMBER_ROWS, shape[-2]).swapaxes(-1, -2))
    source = _as_bits(stored, in_words=array.dtype in NIBBLES)
    parts = source[None] if layout == "panel64" else source
    packed = np.zeros((shape[0], source.shape[-1], PANEL_WIDTH), source.dtype)
    width = PANEL_WIDTH // len(parts)
    for panel, target in enumerate(packed):
        for index, part in enumerate(parts):
            rows = part[panel * width : (panel + 1) * width]
            target[:, index * width : index * width + len(rows)] = rows.T
    return packed.view(stored.dtype)


def _pack_each(array: np.ndarray, layout: str, shape: Sequence[int]) -> np.ndarray:
    """Apply :func:`pack` to each expert's matrix, with one allocation."""
    first = pack(array[0], layout)
    packed = np.empty(shape, first.dtype)
    packed[0] = first
    for number, matrix in enumerate(array[1:], 1):
        _as_bits(packed[number], in_words=False)[...] = _as_bits(pack(matrix, layout), in_words=False)
    return packed


def unpack(stored: np.ndarray, layout: str, logical_shape: Sequence[int], dtype: DTypeLike) -> np.ndarray:
    """Inverse of :func:`pack`: the logical array of ``logical_shape`` and ``dtype``, without the padding."""
    dtype = np.dtype(dtype)
    expected = packed_shape(logical_shape, layout, dtype)
    if stored.shape != expected:
        raise ValueError(f"layout {layout!r} stores {tuple(logical_shape)} as {expected}, found {stored.shape}")
    if layout == "row_major":
        return unpaired(stored, dtype)
    if len(logical_shape) > RANKS.get(layout, len(logical_shape)):
        return np.stack([unpack(matrix, layout, logical_shape[1:], dtype) for matrix in stored])
    if layout in _RUNS:
        return _in_order(unpaired(stored, dtype).view("u1"), np.argsort(_RUNS[layout])).view(dtype)
    if layout in _SPREAD_RUNS:
        words = unpaired(spread.gathered(stored.view("u1"), layout).view(stored.dtype), dtype).view("u1")
        return _in_order(words, np.argsort(_SPREAD_RUNS[layout])).view(dtype)
    if layout == "rows8":
        return np.ascontiguousarray(stored.swapaxes(-1, -2)).reshape(logical_shape).view(dtype)
    bits = _as_bits(np.ascontiguousarray(stored), in_words=dtype in NIBBLES)
    depth = bits.shape[1]
    by_feature = bits.transpose(0, 2, 1)
    if layout == "panel64":
        logical = by_feature.reshape(-1, depth)[: logical_shape[0]]
    else:
        halves = by_feature.reshape(-1, 2, GATED_HALF, depth).transpose(1, 0, 2, 3)
        logical = halves.reshape(2, -1, depth)[:, : logical_shape[1]]
    return unpaired(np.ascontiguousarray(logical).view(stored.dtype), dtype)
