"""HeadLayerNorm in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def reference(inputs: Sequence[Any], attributes: Mapping[str, float]) -> tuple[np.ndarray, ...]:
    """``(x [rows, features], weight [normed_heads, head_dim]) -> (y [rows, features],)``."""
    x, weight = inputs
    heads = x[:, : weight.size].astype(np.float64).reshape(len(x), *weight.shape)
    centred = heads - heads.mean(-1, keepdims=True)
    normed = centred / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + attributes["epsilon"])
    y = x.copy()
    y[:, : weight.size] = (normed * weight).reshape(len(x), -1)
    return (y,)
