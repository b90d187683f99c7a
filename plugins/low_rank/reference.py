"""LowRank in numpy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# a [rank, in_features] and b [rank, out_features] of one projection.
Pair = tuple[np.ndarray, np.ndarray]


def reference(inputs: Sequence[Any], attributes: Mapping[str, int]) -> tuple[np.ndarray, ...]:
    """``(x [rows, K], logits_indices) -> (y [rows, N], projected)`` for a step without adapters: zeros."""
    x, _ = inputs
    widths = (attributes["third_end"], attributes["num_parts"] * attributes["max_rank"])
    y, projected = (np.zeros((len(x), width), np.float32) for width in widths)
    return y, projected


def low_rank(
    x: np.ndarray, adapters: Sequence[Mapping[int, Pair] | None], first_part: int, widths: Sequence[int]
) -> np.ndarray:
    """Compute y [rows, sum(widths)]. ``adapters`` has for each row its pairs by number of projection, or None."""
    rows = []
    for row, adapter in zip(x.astype(np.float64), adapters, strict=True):
        parts = []
        for part, width in enumerate(widths, first_part):
            pair = None if adapter is None else adapter.get(part)
            parts.append(np.zeros(width) if pair is None else (pair[0] @ row) @ pair[1].astype(np.float64))
        rows.append(np.concatenate(parts))
    return np.array(rows, np.float32)
