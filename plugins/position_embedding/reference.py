"""PositionEmbedding in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def reference(inputs: Sequence[Any], _attributes: Mapping[str, float]) -> tuple[np.ndarray, ...]:
    """``(x [tokens, hidden], position_ids int32 [tokens], weight [positions, hidden]) -> (y float32 like x,)``."""
    x, position_ids, weight = inputs
    return (x + weight[position_ids].astype(np.float32),)
