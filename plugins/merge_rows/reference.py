"""MergeRows in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def reference(inputs: Sequence[Any], attributes: Mapping[str, float]) -> tuple[np.ndarray, ...]:
    """``(x [rows, features],) -> (y [rows / merged, merged * features],)``."""
    (x,) = inputs
    return (x.reshape(-1, int(attributes["merged"]) * x.shape[1]),)
