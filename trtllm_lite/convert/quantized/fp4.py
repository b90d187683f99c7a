"""Reads 4-bit numbers with 2 bits of exponent and 1 of fraction (E2M1), in groups with 8-bit scales.

MXFP4 has a power of two for each 32 elements (OCP Microscaling Formats, version 1.0, section 5.2). NVFP4 has an E4M3
scale for each 16 elements and a factor for the whole matrix; their products are stored in float32. Activations are not
quantized.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.convert.quantized.layer import Layer, Matrix
from trtllm_lite.convert.quantized.powers import E8M0, SCALE_DTYPE, powers_of_two
from trtllm_lite.convert.quantized.words import in_pairs
from trtllm_lite.network.blocks import Blocks
from trtllm_lite.network.dtypes import NUMPY

_FP8 = "float8_e4m3fn"
FP4 = "float4_e2m1fn"


def mxfp4(layer: Layer, elements: str) -> Matrix:
    """``elements`` uint8 [out, in / 2], the first in the low bits; ``weight_scale`` uint8 or E8M0 [out, in / 32]."""
    return _matrix(layer, elements, 32, ("uint8", E8M0), SCALE_DTYPE, lambda: powers_of_two(layer, "weight_scale"))


def nvfp4(layer: Layer, elements: str, whole: str, divides: bool) -> Matrix:
    """Like :func:`mxfp4`, with ``weight_scale`` E4M3 [out, in / 16], multiplied or divided by the number ``whole``."""
    factor = np.float32(layer.number(whole))

    def scales() -> NDArray:
        stored = layer.load("weight_scale").astype(np.float32)
        return stored / factor if divides else stored * factor

    return _matrix(layer, elements, 16, (_FP8,), "float32", scales, whole, "input_scale", "input_global_scale")


def _matrix(
    layer: Layer,
    elements: str,
    size: int,
    stored_scale: tuple[str, ...],
    scale_dtype: str,
    scales: Callable[[], NDArray],
    *others: str,
) -> Matrix:
    rows, half = layer.find(elements, ("uint8",), 2).shape
    layer.find("weight_scale", stored_scale, 2)
    layer.expect("weight_scale", (rows, -(-2 * half // size)))
    if 2 * half % size:
        raise layer.error(f"rows of {2 * half} weights cannot be divided into groups of {size}, which is not supported")
    parts = {"weight": lambda: in_pairs(layer.load(elements), axis=-1).view(NUMPY[FP4]), "weight_scale": scales}
    return Matrix((rows, 2 * half), Blocks(FP4, size, scale_dtype), parts, (elements, "weight_scale", *others))
