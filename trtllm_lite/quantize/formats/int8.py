"""Integers of 8 bits; of a float matrix, -128 is not used, so that it and its negative are stored alike."""

import numpy as np
import onnx_ir as ir

from trtllm_lite.quantize.formats.scaled import Scaled


class Int8(Scaled):
    """weight int8; 127 is the largest element of a block of a float matrix."""

    name = "int8"
    weight_dtypes = (ir.DataType.INT8,)
    largest = 127

    def write(self, elements: np.ndarray, to: np.ndarray) -> None:
        """As :meth:`Scaled.write`."""
        to[...] = np.rint(elements)
