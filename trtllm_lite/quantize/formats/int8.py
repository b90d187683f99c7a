"""Integers of 8 bits; of a float matrix, -128 is not used, so that it and its negative are stored alike."""

import numpy as np
import onnx_ir as ir

from trtllm_lite.quantize.formats.scaled import Scaled


class Int8(Scaled):
    """weight int8; 127 is the largest element of a block of a float matrix."""

    name = "int8"
    weight_dtypes = (ir.DataType.INT8,)
    largest = 127

    def rounded(self, scaled: np.ndarray) -> np.ndarray:
        """As :meth:`Scaled.rounded`: to the nearest, halves to even."""
        return np.rint(scaled).astype(np.int8)
