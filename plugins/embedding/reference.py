"""Embedding in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..scaled_weight import scaled


def reference(inputs: Sequence[Any], attributes: Mapping[str, float]) -> tuple[np.ndarray, ...]:
    """``(token_ids int32 [tokens], weight [vocab, hidden], its scale and offset or None) -> (y [tokens, hidden],)``.

    Rows float32 [rows, hidden], or None, follow: token ~i is row i of these.
    """
    token_ids, weight, *numbers, token_rows = inputs
    scale, offset = (None if of_blocks is None else of_blocks[token_ids] for of_blocks in numbers)
    rows = attributes["scale"] * scaled(weight[token_ids], scale, offset)
    if token_rows is not None:
        given = token_ids < 0
        rows[given] = token_rows[~token_ids[given]]
    return (rows.astype(np.float32),)
