"""Floating-point bytes of 4 bits of exponent and 3 of fraction (OCP 8-bit Floating Point Specification, E4M3)."""

import numpy as np
import onnx_ir as ir

from trtllm_lite.quantize.formats.per_channel import PerChannel


class Fp8PerChannel(PerChannel):
    """weight float8_e4m3fn [..., out, in], weight_scale float32 [..., out]."""

    name = "fp8_per_channel"
    weight_dtypes = (ir.DataType.FLOAT8E4M3FN,)
    largest = 448

    def rounded(self, scaled: np.ndarray) -> np.ndarray:
        """As :meth:`PerChannel.rounded`: to the nearest, halves to even."""
        return scaled.astype(self.weight_dtypes[0].numpy())
