"""Describes the numbers that blocks of a matrix are rounded to: a scale, and maybe a zero point, per row of a block."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.errors import BuildError
from trtllm_lite.quantize.rounding.numbers import INT4, Numbers

Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class Blocks:
    """Blocks of ``size`` columns, whose elements are rounded to ``numbers``."""

    size: int
    numbers: Numbers = INT4

    def split(self, matrix: Matrix, layer: str) -> Matrix:
        """The matrix as [out, blocks, size]. Raises BuildError if the columns are not a whole number of blocks."""
        out, columns = matrix.shape
        if columns % self.size:
            sizes = [size for size in (256, 128, 64, 32, 16) if columns % size == 0]
            remedy = f"choose {' or '.join(map(str, sizes))}" if sizes else "keep the layer in full precision"
            raise BuildError(f"{layer}: its {columns} columns are no multiple of the block size {self.size}: {remedy}")
        return matrix.reshape(out, columns // self.size, self.size)


@dataclass(frozen=True)
class Grid:
    """``scales`` and ``zeros``, both float32 [out, blocks]: the number q stands for (q - zero) * scale."""

    blocks: Blocks
    scales: NDArray[np.float32]
    zeros: NDArray[np.float32]

    def nearest(self, split: Matrix) -> Matrix:
        """The nearest numbers for elements [out, blocks, size], halves to even."""
        return self.blocks.numbers.nearest(split / self.scales[..., None] + self.zeros[..., None])

    def meaning(self, numbers: Matrix) -> Matrix:
        """The elements that numbers [out, blocks, size] stand for."""
        return (numbers - self.zeros[..., None]) * self.scales[..., None]

    def round(self, split: Matrix) -> Matrix:
        """Elements [out, blocks, size] rounded to the nearest."""
        return self.meaning(self.nearest(split))


def grid_of(split: Matrix, blocks: Blocks, shrink: float | NDArray[np.float32] = 1.0) -> Grid:
    """The grid up to ``shrink`` times the extremes of each row in each block of ``split`` [out, blocks, size]."""
    numbers = blocks.numbers
    if numbers.zero_points:
        least, largest = np.minimum(split.min(-1), 0) * shrink, np.maximum(split.max(-1), 0) * shrink
        scales = _positive((largest - least) / numbers.largest, numbers)
        zeros = np.clip(np.rint(-least / scales), 0, numbers.largest).astype(np.float32)
    else:
        scales = _positive(np.abs(split).max(-1) * shrink / numbers.largest, numbers)
        zeros = np.zeros(scales.shape, np.float32)
    return Grid(blocks, scales, zeros)


def _positive(scales: NDArray, numbers: Numbers) -> NDArray[np.float32]:
    """``scales`` as float32; the scale of a block of zeros is 1."""
    return np.where(scales > 0, np.maximum(scales, numbers.least_scale), 1).astype(np.float32)
