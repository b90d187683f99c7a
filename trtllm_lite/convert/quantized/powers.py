"""Reads scales that are powers of two, stored as bytes of exponents (OCP Microscaling Formats, version 1.0, E8M0)."""

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.convert.quantized.layer import Layer
from trtllm_lite.network.dtypes import NUMPY

E8M0 = "float8_e8m0fnu"
# The type of the scales: bfloat16 holds all powers of two that E8M0 has.
SCALE_DTYPE = "bfloat16"
_BIAS, _NO_POWER = 127, 255


def powers_of_two(layer: Layer, tensor: str) -> NDArray:
    """Return the scales of ``tensor``, E8M0 or its bytes, in bfloat16. Raises ConvertError if one is NaN."""
    exponents = layer.load(tensor).view(np.uint8)
    if (exponents == _NO_POWER).any():
        raise layer.error(f"a scale of {tensor} is not a number: download the model again")
    return np.ldexp(np.float32(1), exponents.astype(np.int32) - _BIAS).astype(NUMPY[SCALE_DTYPE])
