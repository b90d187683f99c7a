"""4-bit floating-point numbers: 2 bits of exponent, 1 of fraction (OCP Microscaling Formats, version 1.0, E2M1)."""

import onnx_ir as ir

from trtllm_lite.plugins.packing import WORD
from trtllm_lite.quantize.formats.scaled import Scaled


class Float4(Scaled):
    """weight float4_e2m1fn; the elements of a float matrix's block are scaled to at most 6."""

    name = "float4"
    weight_dtypes = (ir.DataType.FLOAT4E2M1,)
    largest = 6
    granule = WORD
