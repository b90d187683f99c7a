"""The kernels of encoders in numpy over raw memory; see cuda_kernels.py."""

import numpy as np

from tests.unit.builder.cuda_kernels import Grid, Macros, Pointer, at, half_type, kernel
from trtllm_lite.plugins.pooling.reference import reference as pool
from trtllm_lite.plugins.ragged_attention.reference import reference as attend


def _rows_of_heads(macros: Macros, pointer: Pointer, rows: int, stride: int) -> np.ndarray:
    """float64 [rows, heads * head_dim] from rows that are ``stride`` elements apart; the last row may end early."""
    half, width = half_type(macros), macros["TL_HEADS"] * macros["TL_HEAD_DIM"]
    flat = at(pointer, half, (rows - 1) * stride + width).astype(np.float64)
    return np.stack([flat[row * stride : row * stride + width] for row in range(rows)])


@kernel
def rotate(macros: Macros, grid: Grid, y: Pointer, x: Pointer, cos: Pointer, sin: Pointer) -> None:
    rows, half, pairs = grid[0], half_type(macros), macros["TL_HALF_DIM"]
    heads, dim = macros["TL_HEADS"], macros["TL_HEAD_DIM"]
    rotated = at(x, half, rows, 3 * heads, dim)[:, : 2 * heads].astype(np.float64)
    c, s = (at(table, np.float32, rows, 1, pairs).astype(np.float64) for table in (cos, sin))
    low, high, rest = np.split(rotated, [pairs, 2 * pairs], axis=-1)
    at(y, half, rows, 2 * heads, dim)[...] = np.concatenate([low * c - high * s, high * c + low * s, rest], axis=-1)


@kernel
def ragged_attention(
    macros: Macros,
    grid: Grid,
    y: Pointer,
    queries: Pointer,
    keys: Pointer,
    values: Pointer,
    cu_seqlens: Pointer,
    distance_bias: Pointer | None,
    num_seqs: int,
    scale: float,
) -> None:
    heads, dim = macros["TL_HEADS"], macros["TL_HEAD_DIM"]
    ends = at(cu_seqlens, np.int32, num_seqs + 1)
    rows, block = int(ends[-1]), 64 * macros["TL_TILES"]
    assert grid[0] == heads
    assert grid[1] >= sum(-(-length // block) for length in np.diff(ends))
    strides = (macros["TL_QUERY_STRIDE"],) * 2 + (3 * heads * dim,)
    parts = [_rows_of_heads(macros, p, rows, n) for p, n in zip((queries, keys, values), strides, strict=True)]
    distances = macros["TL_DISTANCES"]
    bias = at(distance_bias, np.float32, heads, distances) if distances else None
    attributes = {"num_heads": heads, "head_dim": dim, "scale": scale, "window": macros["TL_WINDOW"]}
    at(y, half_type(macros), rows, heads * dim)[...] = attend(
        [np.concatenate(parts, 1), None, None, ends, bias], attributes
    )[0]


@kernel
def pooling(macros: Macros, grid: Grid, y: Pointer, x: Pointer, cu_seqlens: Pointer) -> None:
    ends, hidden = at(cu_seqlens, np.int32, grid[0] + 1), macros["TL_HIDDEN"]
    mode, normalization = ("first", "mean")[macros["TL_MEAN"]], ("none", "l2")[macros["TL_L2"]]
    attributes = {"mode": mode, "normalization": normalization}
    rows = at(x, half_type(macros), int(ends[-1]), hidden).astype(np.float64)
    to = np.float32 if macros["TL_FLOAT_OUT"] else half_type(macros)
    at(y, to, grid[0], hidden)[...] = pool([rows, ends], attributes)[0]
