"""GPTQ (arXiv 2210.17323): columns are rounded one after the other, and those still to come make up for the error."""

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.quantize.rounding.grid import Blocks, Grid, Matrix, grid_of

_DAMPING = 0.01  # of the mean of the diagonal: section 3.3, step 3
_COLUMNS = 128  # whose errors the columns behind make up for at once: section 3.3, step 2


def gptq(matrix: Matrix, gram: NDArray, blocks: Blocks, layer: str) -> tuple[Matrix, Grid]:
    """Numbers [out, blocks, size] for ``matrix`` [out, in], and their grid, which is that of rounding to the nearest.

    ``gram`` [in, in] is the mean of x x^T over what the matrix multiplies. Columns come in the order of the magnitude
    of what they multiply ("act-order" in the code of the paper). Raises BuildError (block size).
    """
    split = blocks.split(matrix, layer)
    order = np.argsort(-np.diag(gram), kind="stable")
    factor, grid = _factor(gram, order), grid_of(split, blocks)
    # A column of the matrix is a row here, which lies in one piece.
    work, numbers = np.ascontiguousarray(matrix.T[order], np.float64), np.empty(matrix.shape[::-1], np.float32)
    scales, zeros = np.ascontiguousarray(grid.scales.T), np.ascontiguousarray(grid.zeros.T)
    for first in range(0, len(order), _COLUMNS):
        end = min(first + _COLUMNS, len(order))
        errors = np.empty((end - first, len(matrix)))
        for column in range(first, end):
            block = order[column] // blocks.size
            own = Grid(blocks, scales[block, :, None], zeros[block, :, None])
            rounded = own.nearest(work[column].astype(np.float32)[:, None, None])
            numbers[order[column]] = rounded[:, 0, 0]
            error = (work[column] - own.meaning(rounded)[:, 0, 0]) / factor[column, column]
            work[column + 1 : end] -= np.outer(factor[column, column + 1 : end], error)
            errors[column - first] = error
        work[end:] -= factor[first:end, end:].T @ errors
    return np.ascontiguousarray(numbers.T).reshape(split.shape), grid


def _factor(gram: NDArray, order: NDArray[np.int64]) -> NDArray[np.float64]:
    """The upper Cholesky factor of the inverse of the damped gram matrix: section 3.3, step 3."""
    damped = gram[np.ix_(order, order)].astype(np.float64)
    mean = np.diag(damped).mean()
    damped[np.diag_indices_from(damped)] += _DAMPING * mean if mean > 0 else 1.0
    factor: NDArray[np.float64] = np.linalg.cholesky(np.linalg.inv(damped)).T
    return factor
