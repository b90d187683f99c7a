"""Rounds between the storage types of weights."""

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.network.dtypes import NUMPY


def cast(array: NDArray, dtype: str) -> NDArray:
    """Round values to a storage type, to nearest even; beyond float16's 65504 they become infinite."""
    with np.errstate(over="ignore"):
        return array.astype(NUMPY[dtype], copy=False)


def overflows(before: NDArray, after: NDArray) -> bool:
    """Whether rounding ``before`` to ``after`` made a finite value infinite."""
    if after.dtype != np.float16 or before.dtype == np.float16:
        return False
    return not np.array_equal(np.isfinite(before), np.isfinite(after))
