"""4-bit integers; float matrices are stored without -8, so that a matrix and its negative are stored alike."""

import numpy as np
import onnx_ir as ir

from trtllm_lite.plugins.packing import WORD
from trtllm_lite.quantize.formats.scaled import Scaled


class Int4(Scaled):
    """weight int4, or uint4 if a network has it; the elements of a float matrix's block are scaled to at most 7.

    A scale takes as many bits as four elements do.
    """

    name = "int4"
    weight_dtypes = (ir.DataType.INT4, ir.DataType.UINT4)
    largest = 7
    scale_dtype = "float16"
    granule = WORD

    def write(self, elements: np.ndarray, to: np.ndarray) -> None:
        """Implements :meth:`Scaled.write`."""
        to[...] = np.rint(elements)
