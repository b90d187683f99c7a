"""GroupedGatedLinear in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..activations import activate


def reference(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """``(x [rows, K], ids [rows, top_k], weight [experts, 2, I, K]) -> (y [rows, top_k, I], no room)``."""
    x, ids, weight = inputs
    own = (ids >= 0) & (ids < len(weight))  # those of others are other ranks'
    chosen = weight.astype(np.float64)[np.where(own, ids, 0)]
    gate, up = np.einsum("rk,rspik->prsi", x.astype(np.float64), chosen)
    y = np.where(own[..., None], activate(attributes["activation"], gate) * up, 0).astype(np.float32)
    return y, np.zeros_like(x), np.zeros(len(x), np.int32)
