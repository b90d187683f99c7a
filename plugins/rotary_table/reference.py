"""RotaryTable in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def reference(inputs: Sequence[Any], attributes: Mapping[str, float]) -> tuple[np.ndarray, ...]:
    """``(position_ids int32 [tokens], inv_freq float32 [half]) -> (cos, sin) float32 [tokens, half]``.

    The angle is the float32 product, as in the code that models were trained with; its rounding is part of the model.
    """
    position_ids, inv_freq = inputs
    angle = (position_ids.astype(np.float32)[:, None] * inv_freq).astype(np.float64)
    scale = attributes["scale"]
    return (scale * np.cos(angle)).astype(np.float32), (scale * np.sin(angle)).astype(np.float32)
