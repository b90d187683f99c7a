"""GatedLinear in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..activations import activate


def reference(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """``(x [rows, K], weight [2, I, K], weight_scale, bias [2, I] or none) -> (y [rows, I] float32,)``."""
    x, weight, scale, bias = inputs
    gate, up = (x.astype(np.float64) @ part.astype(np.float64).T for part in weight)
    if scale is not None:
        gate, up = gate * scale[0], up * scale[1]
    if bias is not None:
        gate, up = gate + bias[0], up + bias[1]
    return ((activate(attributes["activation"], gate) * up).astype(np.float32),)
