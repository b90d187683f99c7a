"""RmsNorm in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def reference(inputs: Sequence[Any], attributes: Mapping[str, float]) -> tuple[np.ndarray, ...]:
    """``(x [rows, hidden], weight [hidden], residual [rows, hidden] | None) -> (y, sum) float32 [rows, hidden]``."""
    x, weight, residual = inputs
    total = x if residual is None else x + residual
    wide = total.astype(np.float64)
    rms = np.sqrt(np.mean(wide**2, axis=-1, keepdims=True) + attributes["epsilon"])
    return (wide / rms * weight).astype(np.float32), total
