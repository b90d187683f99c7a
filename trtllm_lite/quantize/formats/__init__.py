"""Defines how the matrix of a product may be stored: a file for each format."""

from collections.abc import Mapping

import onnx_ir as ir

from trtllm_lite.quantize.formats.common_form import in_one_form
from trtllm_lite.quantize.formats.float4 import Float4
from trtllm_lite.quantize.formats.float8 import Float8
from trtllm_lite.quantize.formats.format import Format, QuantizedFormat, StoredMatrix
from trtllm_lite.quantize.formats.int4 import Int4
from trtllm_lite.quantize.formats.int8 import Int8
from trtllm_lite.quantize.formats.plain import Plain
from trtllm_lite.quantize.formats.scaled import Scaled

FORMATS: tuple[Format, ...] = (Plain(), Int8(), Float8(), Int4(), Float4())


def matrix_of(operands: Mapping[str, ir.Value]) -> StoredMatrix:
    """The matrix among the operands of a fused operator."""
    found = next(known for known in FORMATS if operands["weight"].dtype in known.weight_dtypes)
    return StoredMatrix(found, {name: operands[name] for name in found.operands if name in operands})


__all__ = [
    "FORMATS",
    "Float4",
    "Float8",
    "Format",
    "Int4",
    "Int8",
    "Plain",
    "QuantizedFormat",
    "Scaled",
    "StoredMatrix",
    "in_one_form",
    "matrix_of",
]
