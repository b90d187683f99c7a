"""PagedLoad in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def reference(inputs: Sequence[Any], _attributes: Mapping[str, float]) -> tuple[np.ndarray, ...]:
    """Inputs as in ``schema.toml`` -> ``(y,)``."""
    cache, position_ids, cu_seqlens, block_tables = inputs
    tables = block_tables.reshape(len(cu_seqlens) - 1, -1, block_tables.shape[1])[:, 0]
    y = np.zeros((len(position_ids), cache.shape[2]), np.float32)
    for token, position in enumerate(position_ids):
        if position > 0:
            sequence = np.searchsorted(cu_seqlens, token, side="right") - 1
            block, slot = divmod(position - 1, cache.shape[1])
            y[token] = cache[tables[sequence, block], slot]
    return (y,)
