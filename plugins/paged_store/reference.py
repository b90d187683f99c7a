"""PagedStore in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def reference(inputs: Sequence[Any], _attributes: Mapping[str, float]) -> tuple[np.ndarray, ...]:
    """Inputs as in ``schema.toml`` -> ``(cache_out,)``; inputs are not changed."""
    x, cache, position_ids, cu_seqlens, block_tables, indices = inputs
    cache = cache.copy()
    tables = block_tables.reshape(len(cu_seqlens) - 1, -1, block_tables.shape[1])[:, 0]
    for row, token in zip(x, range(len(x)) if indices is None else indices, strict=True):
        sequence = np.searchsorted(cu_seqlens, token, side="right") - 1
        block, slot = divmod(position_ids[token], cache.shape[1])
        cache[tables[sequence, block], slot] = row
    return (cache,)
