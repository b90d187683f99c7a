"""The columns that operators read of rows of a wider value, in place (``columns`` in schemas)."""

import numpy as np


def columns(rows: np.ndarray, first: int, count: int) -> np.ndarray:
    """The ``count`` columns of ``rows`` from number ``first`` on, a view."""
    assert 0 <= first <= rows.shape[1] - count, f"{count} columns from {first} on are not within {rows.shape[1]}"
    return rows[:, first : first + count]
