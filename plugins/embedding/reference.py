"""Embedding in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..scaled_weight import scaled


def reference(inputs: Sequence[Any], attributes: Mapping[str, float]) -> tuple[np.ndarray, ...]:
    """``(token_ids int32 [tokens], weight [vocab, hidden], its scale and offset or None) -> (y [tokens, hidden],)``."""
    token_ids, weight, *numbers = inputs
    scale, offset = (None if of_blocks is None else of_blocks[token_ids] for of_blocks in numbers)
    rows = scaled(weight[token_ids], scale, offset)
    return ((attributes["scale"] * rows).astype(np.float32),)
