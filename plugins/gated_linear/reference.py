"""GatedLinear in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..activations import activate


def reference(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """``(x [rows, K], weight [2, I, K], weight_scale [2, I], bias [2, I], x_scale [rows]) -> (y [rows, I],)``."""
    x, weight, scale, bias, x_scale = inputs
    gate, up = (x.astype(np.float64) @ part.astype(np.float64).T for part in weight)
    if x_scale is not None:
        gate, up = gate * x_scale[:, None], up * x_scale[:, None]
    if scale is not None:
        gate, up = gate * scale[0], up * scale[1]
    if bias is not None:
        gate, up = gate + bias[0], up + bias[1]
    return ((activate(attributes["activation"], gate) * up).astype(np.float32),)
