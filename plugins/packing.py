"""Packs weights into the layouts of ``plugins/README.md`` with numpy, as the kernels read them.

Any dtype of 1, 2, 4 or 8 bytes works, those of ml_dtypes included: bytes are moved, whatever their values.
"""

from collections.abc import Sequence

import numpy as np

PANEL_WIDTH = 64
GATED_HALF = PANEL_WIDTH // 2
MMA_K = 16
_MMA_ORDER = np.arange(MMA_K).reshape(2, 4, 2).swapaxes(0, 1).reshape(-1)  # 0 1 8 9, 2 3 10 11, …


def packed_shape(logical_shape: Sequence[int], layout: str) -> tuple[int, ...]:
    """Shape of the stored array: ``[panels, K, 64]`` for panels, the logical shape for ``row_major``.

    Raises ``ValueError`` if the layout is unknown or does not hold arrays of that shape.
    """
    match layout, tuple(logical_shape):
        case "row_major", shape:
            return shape
        case "mma_k16", (*_, depth) if depth % MMA_K == 0:
            return tuple(logical_shape)
        case "panel64", (features, depth):
            return (-(-features // PANEL_WIDTH), depth, PANEL_WIDTH)
        case "gated_panel64", (2, features, depth):
            return (-(-features // GATED_HALF), depth, PANEL_WIDTH)
    raise ValueError(f"layout {layout!r} cannot hold an array of shape {tuple(logical_shape)}")


def _as_bytes(array: np.ndarray) -> np.ndarray:
    """The same memory as unsigned integers, which numpy copies fast; it copies types of ml_dtypes one by one."""
    return array.view(f"u{array.dtype.itemsize}")


def _in_order(array: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Each run of ``len(order)`` elements of the last axis in that order."""
    runs = array.reshape(*array.shape[:-1], -1, len(order))
    return np.ascontiguousarray(runs[..., order].reshape(array.shape))


def pack(array: np.ndarray, layout: str) -> np.ndarray:
    """Store a logical weight ``[N, K]`` (panel64) or ``[2, I, K]`` (gated_panel64) as C-contiguous ``[panels, K, 64]``.

    Features past the end of the last panel are zero.
    """
    shape = packed_shape(array.shape, layout)
    source = _as_bytes(np.ascontiguousarray(array))
    if layout == "row_major":
        return source.view(array.dtype)
    if layout == "mma_k16":
        return _in_order(source, _MMA_ORDER).view(array.dtype)
    packed = np.zeros(shape, source.dtype)
    parts = source[None] if layout == "panel64" else source
    width = PANEL_WIDTH // len(parts)
    for panel, target in enumerate(packed):
        for index, part in enumerate(parts):
            rows = part[panel * width : (panel + 1) * width]
            target[:, index * width : index * width + len(rows)] = rows.T
    return packed.view(array.dtype)


def unpack(array: np.ndarray, layout: str, logical_shape: Sequence[int]) -> np.ndarray:
    """Inverse of :func:`pack`: the logical array of ``logical_shape``, without the padding."""
    expected = packed_shape(logical_shape, layout)
    if array.shape != expected:
        raise ValueError(f"layout {layout!r} stores {tuple(logical_shape)} as {expected}, found {array.shape}")
    if layout == "row_major":
        return array
    if layout == "mma_k16":
        return _in_order(_as_bytes(array), np.argsort(_MMA_ORDER)).view(array.dtype)
    depth = array.shape[1]
    stored = _as_bytes(np.ascontiguousarray(array)).transpose(0, 2, 1)
    if layout == "panel64":
        logical = stored.reshape(-1, depth)[: logical_shape[0]]
    else:
        halves = stored.reshape(-1, 2, GATED_HALF, depth).transpose(1, 0, 2, 3)
        logical = halves.reshape(2, -1, depth)[:, : logical_shape[1]]
    return np.ascontiguousarray(logical).view(array.dtype)
