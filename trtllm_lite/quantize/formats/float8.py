"""Floating-point bytes of 4 bits of exponent and 3 of fraction (OCP 8-bit Floating Point Specification, E4M3)."""

import numpy as np
import onnx_ir as ir

from trtllm_lite.quantize.formats.scaled import Scaled


class Float8(Scaled):
    """weight float8_e4m3fn; 448 is the largest element of a block of a float matrix."""

    name = "float8"
    weight_dtypes = (ir.DataType.FLOAT8E4M3FN,)
    largest = 448

    def rounded(self, scaled: np.ndarray) -> np.ndarray:
        """As :meth:`Scaled.rounded`: to the nearest, halves to even."""
        return scaled.astype(self.weight_dtypes[0].numpy())
