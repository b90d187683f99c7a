"""GatherRows in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def reference(inputs: Sequence[Any], _attributes: Mapping[str, float]) -> tuple[np.ndarray, ...]:
    """``(x [tokens, hidden], indices int32 [rows]) -> (y [rows, hidden],)``."""
    x, indices = inputs
    return (x[indices],)
