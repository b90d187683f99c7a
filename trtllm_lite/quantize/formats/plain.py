"""Floating-point matrices, unquantized; the network casts 16-bit ones to float32."""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from trtllm_lite.network.dtypes import PLAIN_ONNX
from trtllm_lite.quantize.formats.format import Format, StoredMatrix, initializer, made_by


class Plain(Format):
    """The formats float32, float16 and bfloat16."""

    name = "plain"
    operands = ("weight",)
    weight_dtypes = PLAIN_ONNX

    def recognise(self, value: ir.Value | None) -> StoredMatrix | None:
        """Implements :meth:`Format.recognise`: W, or Cast(W, float32)."""
        cast = made_by(value, "Cast")
        weight = initializer(value if cast is None else cast.inputs[0])
        if value is None or value.dtype != ir.DataType.FLOAT or weight is None:
            return None
        is_matrix = weight.dtype in self.weight_dtypes and weight.shape is not None and len(weight.shape) == 2
        return StoredMatrix(self, {"weight": weight}) if is_matrix else None

    def dequantize(self, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
        """Implements :meth:`Format.dequantize`."""
        return tensors["weight"].astype(np.float32)
