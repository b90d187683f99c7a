"""Integers of 4 bits; of a float matrix, -8 is not used, so that it and its negative are stored alike."""

import numpy as np
import onnx_ir as ir

from trtllm_lite.plugins.packing import WORD
from trtllm_lite.quantize.formats.scaled import Scaled


class Int4(Scaled):
    """weight int4, or uint4 where a network has it; 7 is the largest element of a block of a float matrix.

    A scale takes as many bits as four elements do.
    """

    name = "int4"
    weight_dtypes = (ir.DataType.INT4, ir.DataType.UINT4)
    largest = 7
    scale_dtype = "float16"
    granule = WORD

    def write(self, elements: np.ndarray, to: np.ndarray) -> None:
        """As :meth:`Scaled.write`."""
        to[...] = np.rint(elements)
