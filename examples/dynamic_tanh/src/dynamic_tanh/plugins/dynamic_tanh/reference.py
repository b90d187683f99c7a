"""DynamicTanh in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def reference(inputs: Sequence[Any], _attributes: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """``(x [rows, hidden], alpha [1], weight [hidden], bias [hidden]) -> (y [rows, hidden],)``, float32."""
    x, alpha, weight, bias = (array.astype(np.float64) for array in inputs)
    return ((np.tanh(alpha * x) * weight + bias).astype(np.float32),)
