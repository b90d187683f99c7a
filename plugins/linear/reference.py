"""Linear in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..activations import activate
from ..scaled_weight import scaled


def reference(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """``(x [rows, K], weight [N, K], scale [N, blocks], bias [N], x_scale [rows], offset [N, blocks], added) -> (y,)``.

    ``added`` is [rows, N], as y.
    """
    x, weight, scale, bias, x_scale, offset, added = inputs
    y = x.astype(np.float64) @ scaled(weight, scale, offset).T
    if x_scale is not None:
        y = y * x_scale[:, None]
    if bias is not None:
        y = y + bias
    if added is not None:
        y = y + added
    return (activate(attributes["activation"], y).astype(np.float32),)
