"""QueryKeyNorm in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def reference(inputs: Sequence[Any], attributes: Mapping[str, float]) -> tuple[np.ndarray, ...]:
    """``(x [rows, features], query_weight [queries], key_weight [keys]) -> (y [rows, features],)``."""
    x, *weights = inputs
    y, first = x.copy(), 0
    for weight in weights:
        part = slice(first, first + len(weight))
        wide = x[:, part].astype(np.float64)
        rms = np.sqrt(np.mean(wide**2, axis=-1, keepdims=True) + attributes["epsilon"])
        y[:, part] = wide / rms * weight
        first += len(weight)
    return (y,)
