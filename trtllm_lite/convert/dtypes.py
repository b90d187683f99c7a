"""The storage types of weights: their names in every file format, and the rounding between them."""

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

NUMPY: dict[str, np.dtype] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
ONNX = {"float32": ir.DataType.FLOAT, "float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}
SAFETENSORS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def cast(array: NDArray, dtype: str) -> NDArray:
    """Round values to a storage type, to nearest even; beyond float16's 65504 they become infinite."""
    with np.errstate(over="ignore"):
        return array.astype(NUMPY[dtype], copy=False)


def overflows(before: NDArray, after: NDArray) -> bool:
    """Whether rounding ``before`` to ``after`` made a finite value infinite."""
    if after.dtype != np.float16 or before.dtype == np.float16:
        return False
    return not np.array_equal(np.isfinite(before), np.isfinite(after))
