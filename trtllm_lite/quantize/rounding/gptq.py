"""GPTQ (arXiv 2210.17323): columns are rounded one after the other, and later columns compensate for the error."""

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.quantize.rounding.grid import Blocks, Grid, Matrix, grid_of

_DAMPING = 0.01  # share of the mean of the diagonal: section 3.3, step 3
_COLUMNS = 128  # columns whose compensation for all earlier errors is computed at once: section 3.3, step 2


def gptq(matrix: Matrix, gram: NDArray, blocks: Blocks, layer: str) -> tuple[Matrix, Grid]:
    """Numbers [out, blocks, size] for ``matrix`` [out, in], and their grid, the same as for rounding to nearest.

    ``gram`` [in, in] is the mean of x x^T over the matrix's inputs x. Columns are rounded in the order of the magnitude
    of their inputs ("act-order" in the code of the paper). Before column k is rounded, the compensation for the errors
    e of earlier columns, the sum of e_c R_ck / R_kk, is added, which gives the numbers of the paper without an inverse
    (arXiv 2507.18553: Babai's nearest plane algorithm). Raises BuildError (block size).
    """
    split = blocks.split(matrix, layer)
    order = np.argsort(-np.diag(gram), kind="stable")
    factor, grid = _factor(gram, order), grid_of(split, blocks)
    # A column of the matrix is a row here, so that it is contiguous.
    numbers, errors = np.empty(matrix.shape[::-1], np.float32), np.empty(matrix.shape[::-1])
    scales, zeros = np.ascontiguousarray(grid.scales.T), np.ascontiguousarray(grid.zeros.T)
    for first in range(0, len(order), _COLUMNS):
        end = min(first + _COLUMNS, len(order))
        exact = np.ascontiguousarray(matrix.T[order[first:end]], np.float64)
        before = np.ascontiguousarray(factor[:first, first:end].T) @ errors[:first]
        within = np.ascontiguousarray(factor[first:end, first:end].T)
        for row, column in enumerate(order[first:end]):
            own = Grid(blocks, scales[column // blocks.size, :, None], zeros[column // blocks.size, :, None])
            made_up = (before[row] + within[row, :row] @ errors[first : first + row]) / within[row, row]
            rounded = own.nearest((exact[row] + made_up).astype(np.float32)[:, None, None])
            numbers[column] = rounded[:, 0, 0]
            errors[first + row] = exact[row] - own.meaning(rounded)[:, 0, 0]
    return np.ascontiguousarray(numbers.T).reshape(split.shape), grid


def _factor(gram: NDArray, order: NDArray[np.int64]) -> NDArray[np.floating]:
    """The upper triangular R with R R^T = the damped gram matrix of the columns in ``order``: section 3.3, step 3."""
    backwards = order[::-1]
    damped = gram[np.ix_(backwards, backwards)].astype(np.float64)
    mean = np.diag(damped).mean()
    damped[np.diag_indices_from(damped)] += _DAMPING * mean if mean > 0 else 1.0
    return np.linalg.cholesky(damped)[::-1, ::-1]
