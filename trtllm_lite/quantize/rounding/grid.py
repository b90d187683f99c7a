"""The numbers that blocks of a matrix can be rounded to: a scale, and maybe a zero point, for each row of a block."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.errors import BuildError

Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class Blocks:
    """Integers of 4 bits for blocks of ``size`` columns.

    Symmetric ones are signed; with ``zero_points`` they are unsigned, and the zero point of each row of a block is the
    integer that means 0.
    """

    size: int
    zero_points: bool = False

    @property
    def range(self) -> tuple[int, int]:
        """The least and the largest integer."""
        return (0, 15) if self.zero_points else (-8, 7)

    def split(self, matrix: Matrix, layer: str) -> Matrix:
        """The matrix as [out, blocks, size]. Raises BuildError if its columns are no whole number of blocks."""
        out, columns = matrix.shape
        if columns % self.size:
            sizes = [size for size in (256, 128, 64, 32, 16) if columns % size == 0]
            remedy = f"choose {' or '.join(map(str, sizes))}" if sizes else "keep the layer in full precision"
            raise BuildError(f"{layer}: its {columns} columns are no multiple of the block size {self.size}: {remedy}")
        return matrix.reshape(out, columns // self.size, self.size)


@dataclass(frozen=True)
class Grid:
    """``scales`` float32 and ``zeros`` int32, both [out, blocks]: integer q means (q - zero) * scale."""

    blocks: Blocks
    scales: NDArray[np.float32]
    zeros: NDArray[np.int32]

    def nearest(self, split: Matrix) -> NDArray[np.int32]:
        """Integers for elements [out, blocks, size], to the nearest, halves to even."""
        low, high = self.blocks.range
        scaled = np.rint(split / self.scales[..., None]).astype(np.int32) + self.zeros[..., None]
        return np.clip(scaled, low, high)

    def meaning(self, integers: NDArray[np.int32]) -> Matrix:
        """What integers [out, blocks, size] mean."""
        return (integers - self.zeros[..., None]).astype(np.float32) * self.scales[..., None]

    def round(self, split: Matrix) -> Matrix:
        """Elements [out, blocks, size] rounded to the nearest."""
        return self.meaning(self.nearest(split))


def grid_of(split: Matrix, blocks: Blocks, shrink: float | NDArray[np.float32] = 1.0) -> Grid:
    """The grid that reaches ``shrink`` times the extremes of each row of a block of ``split`` [out, blocks, size].

    Its scales can be stored in 16 bits: none is below float16's least normal number.
    """
    low, high = blocks.range
    if blocks.zero_points:
        least, largest = np.minimum(split.min(-1), 0) * shrink, np.maximum(split.max(-1), 0) * shrink
        scales = _positive((largest - least) / (high - low))
        zeros = np.clip(np.rint(-least / scales), low, high).astype(np.int32)
    else:
        scales = _positive(np.abs(split).max(-1) * shrink / high)
        zeros = np.zeros(scales.shape, np.int32)
    return Grid(blocks, scales, zeros)


def _positive(scales: NDArray) -> NDArray[np.float32]:
    """``scales`` as float32; those of blocks of zeros are 1."""
    return np.where(scales > 0, np.maximum(scales, np.finfo(np.float16).tiny), 1).astype(np.float32)
