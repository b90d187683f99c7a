"""Linear in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..activations import activate


def reference(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """``(x [rows, K], weight [N, K], weight_scale [N], bias [N], x_scale [rows]) -> (y [rows, N],)``."""
    x, weight, scale, bias, x_scale = inputs
    y = x.astype(np.float64) @ weight.astype(np.float64).T
    if x_scale is not None:
        y = y * x_scale[:, None]
    if scale is not None:
        y = y * scale
    if bias is not None:
        y = y + bias
    return (activate(attributes["activation"], y).astype(np.float32),)
