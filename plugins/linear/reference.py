"""Linear in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def reference(inputs: Sequence[Any], _attributes: Mapping[str, float]) -> tuple[np.ndarray, ...]:
    """``(x [rows, K], weight [N, K], bias [N] | None) -> (y [rows, N] float32,)``."""
    x, weight, bias = inputs
    y = x.astype(np.float64) @ weight.astype(np.float64).T
    if bias is not None:
        y = y + bias
    return (y.astype(np.float32),)
