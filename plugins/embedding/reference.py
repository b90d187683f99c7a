"""Embedding in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def reference(inputs: Sequence[Any], attributes: Mapping[str, float]) -> tuple[np.ndarray, ...]:
    """``(token_ids int32 [tokens], weight [vocab, hidden]) -> (y [tokens, hidden] float32,)``."""
    token_ids, weight = inputs
    return ((attributes["scale"] * weight[token_ids].astype(np.float64)).astype(np.float32),)
