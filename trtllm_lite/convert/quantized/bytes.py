"""Reads matrices with one byte for each element, and one scale in all or a scale for each row or tile."""

from math import gcd

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.common.vocabulary import PLAIN_DTYPES
from trtllm_lite.convert.quantized.layer import Layer, Matrix
from trtllm_lite.convert.quantized.powers import E8M0, SCALE_DTYPE, powers_of_two
from trtllm_lite.network.blocks import Blocks, Rounding

_FP8 = "float8_e4m3fn"


def bytes_by_row(layer: Layer, dtype: str, rounding: Rounding | None = None) -> Matrix:
    """``weight`` [out, in] of ``dtype`` and ``weight_scale``, one number or [out] or [out, 1].

    A single number is repeated as the scale of each row, which changes no element.
    """
    rows, depth = layer.find("weight", (dtype,), 2).shape
    scale = layer.expect_shape("weight_scale", (), (1,), (rows,), (rows, 1), (1, 1))

    def scales() -> NDArray:
        return np.broadcast_to(layer.load("weight_scale").reshape(-1), (rows,))

    return Matrix(
        (rows, depth),
        Blocks(dtype, depth, scale.dtype, rounding=rounding),
        {"weight": lambda: layer.load("weight"), "weight_scale": scales},
        ("weight", "weight_scale", "input_scale"),
    )


def fp8_in_tiles(layer: Layer, scale: str, tile: tuple[int, int]) -> Matrix:
    """Read ``weight`` [out, in] of FP8 and a ``scale`` for each tile of that many rows and columns.

    Each row of a tile gets the tile's scale. The last tiles may be smaller; if the length of a row is not a multiple of
    the tile's, blocks have the greatest length that divides both.
    """
    rows, depth = layer.find("weight", (_FP8,), 2).shape
    down, across = -(-rows // tile[0]), -(-depth // tile[1])
    info = layer.expect_shape(scale, (down, across), (down, 1, across, 1), dtypes=(*PLAIN_DTYPES, E8M0))
    are_powers, size = info.dtype == E8M0, depth if across == 1 else gcd(depth, tile[1])

    def scales() -> NDArray:
        tiles = (powers_of_two(layer, scale) if are_powers else layer.load(scale)).reshape(down, across)
        return tiles[np.arange(rows) // tile[0]][:, np.arange(0, depth, size) // tile[1]]

    parts = {"weight": lambda: layer.load("weight"), "weight_scale": scales}
    return Matrix(
        (rows, depth), Blocks(_FP8, size, SCALE_DTYPE if are_powers else info.dtype), parts, ("weight", scale)
    )
