"""AWQ (arXiv 2306.00978): channels with large activations are scaled up before matrices are rounded."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.quantize.rounding.grid import Blocks, Grid, Matrix, grid_of

_EXPONENTS = np.arange(20, dtype=np.float32) / 20  # section 3.2: a grid search from 0 to 1
_SEARCHED_ROWS = 512  # rows of each matrix that the search looks at, at most
_SHRINKS = np.array([1 - step / 20 for step in range(10)], np.float32)


def channel_factors(
    matrices: Sequence[Matrix], magnitude: NDArray[np.float32], sample: Matrix, blocks: Blocks, layer: str
) -> NDArray[np.float32]:
    """Factors of the columns of ``matrices``, which have the same input x: magnitude^a, for the best a (equation 5).

    ``magnitude`` is the mean of |x| of each channel; the best a gives the least error of products with the rows of
    ``sample``, computed for some rows of each matrix. All factors are 1 if no other is better.

    Raises BuildError (block size).
    """
    matrices = [matrix[:: -(-len(matrix) // _SEARCHED_ROWS)] for matrix in matrices]
    exact = [sample @ matrix.T for matrix in matrices]
    best, least = np.ones_like(magnitude), np.inf
    for exponent in _EXPONENTS:
        factors = np.maximum(magnitude, np.float32(1e-4)) ** exponent
        factors /= np.sqrt(factors.max() * factors.min())
        error = 0.0
        for matrix, wanted in zip(matrices, exact, strict=True):
            split = blocks.split(matrix * factors, layer)
            rounded = grid_of(split, blocks).round(split).reshape(matrix.shape) / factors
            error += float(np.square(sample @ rounded.T - wanted).sum(dtype=np.float64))
        if error < least:
            best, least = factors, error
    return best


def clipped(matrix: Matrix, sample: Matrix, blocks: Blocks, layer: str) -> Grid:
    """The grid of ``matrix``, with its extremes shrunk if that reduces the error of a block's products with ``sample``.

    Each row of a block is clipped by itself, as in the code of the paper. Raises BuildError (block size).
    """
    split = blocks.split(matrix, layer)
    parts = sample.reshape(len(sample), *split.shape[1:]).transpose(1, 0, 2)
    grams = parts.transpose(0, 2, 1) @ parts  # [blocks, size, size]
    shrink, least = np.ones(split.shape[:2], np.float32), np.full(split.shape[:2], np.inf)
    for candidate in _SHRINKS:
        off = (grid_of(split, blocks, candidate).round(split) - split).transpose(1, 0, 2)
        error = ((off @ grams) * off).sum(-1).T
        better = error < least
        shrink[better], least[better] = candidate, error[better]
    return grid_of(split, blocks, shrink)
