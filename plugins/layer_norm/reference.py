"""LayerNorm in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def reference(inputs: Sequence[Any], attributes: Mapping[str, float]) -> tuple[np.ndarray, ...]:
    """``(x [rows, hidden], weight [hidden], residual like x | None, bias [hidden] | None) -> (y, sum)``, float32."""
    x, weight, residual, bias = inputs
    total = x if residual is None else x + residual
    centred = total.astype(np.float64)
    centred = centred - centred.mean(axis=-1, keepdims=True)
    deviation = np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + attributes["epsilon"])
    y = centred / deviation * weight
    return (y if bias is None else y + bias).astype(np.float32), total
