"""GatedLinear in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..activations import activate
from ..scaled_weight import scaled


def reference(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """Like Linear's reference, with two matrices: weight [2, I, K], scale and offset [2, I, blocks], bias [2, I].

    ``added`` is [rows, 2 * I], the gate's columns first; y is [rows, I].
    """
    x, weight, scale, bias, x_scale, offset, added = inputs
    gate, up = (x.astype(np.float64) @ part.T for part in scaled(weight, scale, offset))
    if x_scale is not None:
        gate, up = gate * x_scale[:, None], up * x_scale[:, None]
    if bias is not None:
        gate, up = gate + bias[0], up + bias[1]
    if added is not None:
        half = added.shape[1] // 2
        gate, up = gate + added[:, :half], up + added[:, half:]
    return ((activate(attributes["activation"], gate) * up).astype(np.float32),)
