"""GroupedLinear in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..scaled_weight import scaled


def reference(inputs: Sequence[Any], _attributes: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """``(x [rows, top_k, K], ids and shares [rows, top_k], weight [experts, N, K], …) -> (y [rows, N], scratch)``."""
    x, ids, shares, weight, scale, bias, offset = inputs
    own = (ids >= 0) & (ids < len(weight))  # other ids belong to other ranks
    found = np.where(own, ids, 0)
    results = np.einsum("rsk,rsnk->rsn", x.astype(np.float64), scaled(weight, scale, offset)[found])
    if bias is not None:
        results = results + bias[found]
    if shares is not None:
        results = results * shares[..., None]
    y = np.where(own[..., None], results, 0).sum(1).astype(np.float32)
    return y, np.zeros_like(x[:, 0]), np.zeros(len(x), np.int32)
