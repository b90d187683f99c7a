"""GatedLinear in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def reference(inputs: Sequence[Any], _attributes: Mapping[str, float]) -> tuple[np.ndarray, ...]:
    """``(x [rows, K], weight [2, I, K], bias [2, I] or none) -> (y [rows, I] float32,)``."""
    x, weight, bias = inputs
    gate, up = (x.astype(np.float64) @ part.astype(np.float64).T for part in weight)
    if bias is not None:
        gate, up = gate + bias[0], up + bias[1]
    return ((gate / (1 + np.exp(-gate)) * up).astype(np.float32),)
