"""SigmoidGate in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def reference(inputs: Sequence[Any], _attributes: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """``(x [rows, K], weight [K, 1], values [rows, features]) -> (y [rows, features],)``."""
    x, weight, values = inputs
    return ((values / (1 + np.exp(-(x.astype(np.float64) @ weight)))).astype(np.float32),)
