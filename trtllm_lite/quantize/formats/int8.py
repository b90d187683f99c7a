"""8-bit integers; float matrices are stored without -128, so that a matrix and its negative are stored alike."""

import numpy as np
import onnx_ir as ir

from trtllm_lite.quantize.formats.scaled import Scaled


class Int8(Scaled):
    """weight int8; the elements of a float matrix's block are scaled to at most 127."""

    name = "int8"
    weight_dtypes = (ir.DataType.INT8,)
    largest = 127

    def write(self, elements: np.ndarray, to: np.ndarray) -> None:
        """Implements :meth:`Scaled.write`."""
        to[...] = np.rint(elements)
