"""GroupedGatedLinear in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..activations import gated
from ..scaled_weight import scaled


def reference(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """``(x [rows, K], ids [rows, top_k], weight [experts, 2, I, K], …) -> (y [rows, top_k, I], scratch)``."""
    x, ids, weight, scale, bias, offset, shares = inputs
    own = (ids >= 0) & (ids < len(weight))  # other ids belong to other ranks
    found = np.where(own, ids, 0)
    both = np.einsum("rk,rspik->rspi", x.astype(np.float64), scaled(weight, scale, offset)[found])
    if shares is not None:
        both = both * shares[..., None, None]
    gate, up = np.moveaxis(both if bias is None else both + bias[found], 2, 0)
    if attributes["self_gated"]:
        gate = up = np.concatenate([gate, up], axis=-1)
    y = np.where(own[..., None], gated(attributes["activation"], gate, up), 0).astype(np.float32)
    return y, np.zeros_like(x), np.zeros(len(x), np.int32)
