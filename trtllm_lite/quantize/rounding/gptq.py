"""GPTQ (arXiv 2210.17323): columns are rounded one after the other, and those still to come make up for the error."""

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.quantize.rounding.grid import Blocks, Grid, Matrix, grid_of

_DAMPING = 0.01  # of the mean of the diagonal: section 3.3, step 3


def gptq(
    matrix: Matrix, gram: NDArray, blocks: Blocks, layer: str, act_order: bool = True
) -> tuple[NDArray[np.int32], Grid]:
    """Integers [out, blocks, size] for ``matrix`` [out, in], and their grid.

    ``gram`` [in, in] is the mean of x x^T over what the matrix multiplies. With ``act_order`` columns come in the order
    of the magnitude of what they multiply, on grids of the matrix as it is; without, each block has the grid of its
    columns when its turn comes. Raises BuildError (block size).
    """
    split = blocks.split(matrix, layer)
    factor = _factor(gram, order := _order(gram, act_order))
    work = matrix[:, order].astype(np.float64)
    grid = grid_of(split, blocks)
    integers = np.empty(matrix.shape, np.int32)
    for first in range(0, matrix.shape[1], blocks.size):
        end = first + blocks.size
        if not act_order:
            grid = _regrid(grid, work[:, first:end], first // blocks.size)
        errors = np.empty((matrix.shape[0], blocks.size))
        for column in range(first, end):
            number = order[column] // blocks.size
            rounded, integers[:, order[column]] = _round(grid, number, work[:, column])
            error = (work[:, column] - rounded) / factor[column, column]
            work[:, column + 1 : end] -= np.outer(error, factor[column, column + 1 : end])
            errors[:, column - first] = error
        work[:, end:] -= errors @ factor[first:end, end:]
    return integers.reshape(split.shape), grid


def _order(gram: NDArray, act_order: bool) -> NDArray[np.int64]:
    if act_order:
        return np.argsort(-np.diag(gram), kind="stable")
    return np.arange(len(gram))


def _factor(gram: NDArray, order: NDArray[np.int64]) -> NDArray[np.float64]:
    """The upper Cholesky factor of the inverse of the damped gram matrix: section 3.3, step 3."""
    damped = gram[np.ix_(order, order)].astype(np.float64)
    mean = np.diag(damped).mean()
    damped[np.diag_indices_from(damped)] += _DAMPING * mean if mean > 0 else 1.0
    factor: NDArray[np.float64] = np.linalg.cholesky(np.linalg.inv(damped)).T
    return factor


def _regrid(grid: Grid, columns: NDArray, number: int) -> Grid:
    """``grid`` with the scales and zero points of block ``number`` made for ``columns``."""
    own = grid_of(columns.astype(np.float32)[:, None], grid.blocks)
    scales, zeros = grid.scales.copy(), grid.zeros.copy()
    scales[:, number], zeros[:, number] = own.scales[:, 0], own.zeros[:, 0]
    return Grid(grid.blocks, scales, zeros)


def _round(grid: Grid, number: int, column: NDArray) -> tuple[Matrix, NDArray[np.int32]]:
    """What a column of block ``number`` is rounded to, and the integers."""
    own = Grid(grid.blocks, grid.scales[:, number, None], grid.zeros[:, number, None])
    integers = own.nearest(column.astype(np.float32)[:, None, None])
    return own.meaning(integers)[:, 0, 0], integers[:, 0, 0]
