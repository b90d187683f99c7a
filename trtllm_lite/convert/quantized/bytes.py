"""Matrices of a byte for each element, with one scale or with a scale for each row."""

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.convert.quantized.layer import Layer, Matrix
from trtllm_lite.network.blocks import Blocks, Rounding


def bytes_by_row(layer: Layer, dtype: str, rounding: Rounding | None = None) -> Matrix:
    """``weight`` [out, in] of ``dtype`` and ``weight_scale``, one number or [out] or [out, 1].

    One number becomes the scale of each row, which changes no element.
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
