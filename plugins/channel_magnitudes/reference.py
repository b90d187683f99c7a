"""ChannelMagnitudes in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def reference(inputs: Sequence[Any], _attributes: Mapping[str, float]) -> tuple[np.ndarray, ...]:
    """``(x [rows, features],) -> (y [2, features],)``."""
    magnitudes = np.abs(inputs[0])
    sums = magnitudes.sum(0, dtype=np.float64)
    return (np.stack([magnitudes.max(0, initial=0), sums]).astype(np.float32),)
