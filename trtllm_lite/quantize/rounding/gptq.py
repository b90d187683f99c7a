"""GPTQ (arXiv 2210.17323): columns are rounded one after the other, and those still to come make up for the error."""

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.quantize.rounding.grid import Blocks, Grid, Matrix, grid_of

_DAMPING = 0.01  # of the mean of the diagonal: section 3.3, step 3
_COLUMNS = 128  # whose errors the columns behind make up for at once: section 3.3, step 2


def gptq(matrix: Matrix, gram: NDArray, blocks: Blocks, layer: str) -> tuple[NDArray[np.int32], Grid]:
    """Integers [out, blocks, size] for ``matrix`` [out, in], and their grid, which is that of rounding to the nearest.

    ``gram`` [in, in] is the mean of x x^T over what the matrix multiplies. Columns come in the order of the magnitude
    of what they multiply ("act-order" in the code of the paper). Raises BuildError (block size).
    """
    split = blocks.split(matrix, layer)
    order = np.argsort(-np.diag(gram), kind="stable")
    factor, grid = _factor(gram, order), grid_of(split, blocks)
    work, integers = matrix[:, order].astype(np.float64), np.empty(matrix.shape, np.int32)
    for first in range(0, len(order), _COLUMNS):
        end = min(first + _COLUMNS, len(order))
        errors = np.empty((len(matrix), end - first))
        for column in range(first, end):
            rounded, integers[:, order[column]] = _round(grid, order[column] // blocks.size, work[:, column])
            error = (work[:, column] - rounded) / factor[column, column]
            work[:, column + 1 : end] -= np.outer(error, factor[column, column + 1 : end])
            errors[:, column - first] = error
        work[:, end:] -= errors @ factor[first:end, end:]
    return integers.reshape(split.shape), grid


def _factor(gram: NDArray, order: NDArray[np.int64]) -> NDArray[np.float64]:
    """The upper Cholesky factor of the inverse of the damped gram matrix: section 3.3, step 3."""
    damped = gram[np.ix_(order, order)].astype(np.float64)
    mean = np.diag(damped).mean()
    damped[np.diag_indices_from(damped)] += _DAMPING * mean if mean > 0 else 1.0
    factor: NDArray[np.float64] = np.linalg.cholesky(np.linalg.inv(damped)).T
    return factor


def _round(grid: Grid, number: int, column: NDArray) -> tuple[Matrix, NDArray[np.int32]]:
    """What a column of block ``number`` is rounded to, and the integers."""
    own = Grid(grid.blocks, grid.scales[:, number, None], grid.zeros[:, number, None])
    integers = own.nearest(column.astype(np.float32)[:, None, None])
    return own.meaning(integers)[:, 0, 0], integers[:, 0, 0]
