"""Integers of 4 bits; of a float matrix, -8 is not used, so that it and its negative are stored alike."""

import numpy as np
import onnx_ir as ir

from trtllm_lite.network.dtypes import NUMPY
from trtllm_lite.network.tensors import extents
from trtllm_lite.plugins.packing import WORD
from trtllm_lite.quantize.formats.format import StoredMatrix
from trtllm_lite.quantize.formats.scaled import Scaled


class Int4(Scaled):
    """weight int4, or uint4 where a network has it; 7 is the largest element of a block of a float matrix.

    A scale takes as many bits as four elements do.
    """

    name = "int4"
    weight_dtypes = (ir.DataType.INT4, ir.DataType.UINT4)
    largest = 7
    scale_dtype = "float16"

    def recognise(self, value: ir.Value | None) -> StoredMatrix | None:
        """As :meth:`Scaled.recognise`; blocks are whole words of 4 bits, as kernels read them."""
        found = super().recognise(value)
        block = 0 if found is None else found.shape[-1] // extents(found.tensor("weight_scale"))[-1]
        return found if block % WORD == 0 else None

    def rounded(self, scaled: np.ndarray) -> np.ndarray:
        """As :meth:`Scaled.rounded`: to the nearest, halves to even."""
        return np.rint(scaled).astype(NUMPY["int4"])
