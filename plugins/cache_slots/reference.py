"""CacheSlots in numpy, one sequence at a time."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def reference(inputs: Sequence[Any], attributes: Mapping[str, int]) -> tuple[np.ndarray, ...]:
    """Inputs as in ``schema.toml`` -> ``(slots [num_groups, num_tokens], past_lens_out)``; inputs are not changed."""
    past_lens, position_ids, token_slots, cu_seqlens, block_tables, last_tokens = inputs
    past_lens, page = past_lens.copy(), attributes["tokens_per_block"]
    tables = block_tables.reshape(len(past_lens), -1, block_tables.shape[1])
    slots = np.zeros((tables.shape[1], len(position_ids)), np.int32)
    for sequence, table in enumerate(tables):
        rows = slice(cu_seqlens[sequence], cu_seqlens[sequence + 1])
        slots[:, rows] = table[:, position_ids[rows] // page] * page + position_ids[rows] % page
        if any(slot >= 0 and last_tokens[slot] < 0 for slot in token_slots[rows]):
            past_lens[sequence] = 0
    return slots, past_lens
