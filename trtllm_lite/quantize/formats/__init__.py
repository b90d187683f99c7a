"""How the matrix of a product may be stored: a file for each format."""

from collections.abc import Mapping

import onnx_ir as ir

from trtllm_lite.quantize.formats.format import Format, QuantizedFormat, StoredMatrix
from trtllm_lite.quantize.formats.fp8_per_channel import Fp8PerChannel
from trtllm_lite.quantize.formats.int8_per_channel import Int8PerChannel
from trtllm_lite.quantize.formats.plain import Plain

FORMATS: tuple[Format, ...] = (Plain(), Int8PerChannel(), Fp8PerChannel())


def matrix_of(operands: Mapping[str, ir.Value]) -> StoredMatrix:
    """The matrix among the operands of a fused operator."""
    found = next(known for known in FORMATS if operands["weight"].dtype in known.weight_dtypes)
    return StoredMatrix(found, {name: operands[name] for name in found.operands})


__all__ = [
    "FORMATS",
    "Format",
    "Fp8PerChannel",
    "Int8PerChannel",
    "Plain",
    "QuantizedFormat",
    "StoredMatrix",
    "matrix_of",
]
