"""Integers of -127..127; -128 is not used, so that a matrix and its negative are stored alike."""

import numpy as np
import onnx_ir as ir

from trtllm_lite.quantize.formats.per_channel import PerChannel


class Int8PerChannel(PerChannel):
    """weight int8 [..., out, in], weight_scale float32 [..., out]."""

    name = "int8_per_channel"
    weight_dtypes = (ir.DataType.INT8,)
    largest = 127

    def rounded(self, scaled: np.ndarray) -> np.ndarray:
        """As :meth:`PerChannel.rounded`: to the nearest, halves to even."""
        return np.rint(scaled).astype(np.int8)
