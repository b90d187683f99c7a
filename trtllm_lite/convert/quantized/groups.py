"""Matrices of integers whose rows are cut into groups, each with a scale and perhaps a zero point."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.convert.quantized.layer import Layer, Matrix
from trtllm_lite.network.blocks import Blocks
from trtllm_lite.network.dtypes import NUMPY

_Load = Callable[[], NDArray]


@dataclass(frozen=True)
class Groups:
    """A matrix of ``shape`` [out, in] in unsigned integers of ``bits``; its rows have ``count`` groups.

    Integers of 2 and 3 bits are kept in 4.

    ``elements`` gives them [out, in], ``scales`` and ``zeros`` give a number for each group [out, count]. Without
    ``zeros`` all zero points are half of the range, and the network has signed integers without zero points.
    """

    shape: tuple[int, int]
    bits: int
    count: int
    elements: _Load
    scales: _Load
    scale_dtype: str
    zeros: _Load | None

    def matrix(self, layer: Layer, *stored: str) -> Matrix:
        """Return the matrix in the form of the network. Raises ConvertError if rows are not whole groups."""
        if self.count == 0 or self.shape[1] % (self.count * self._repeats):
            raise layer.error(
                f"rows of {self.shape[1]} weights cannot be divided into {self.count} groups of equal length: "
                "convert the unquantized model"
            )
        size = self.shape[1] // (self.count * self._repeats)
        signed = Blocks(f"int{self._kept_bits}", size, self.scale_dtype)
        scales = self._repeated(self.scales)
        if self.zeros is None:
            return Matrix(self.shape, signed, {"weight": self._signed, "weight_scale": scales}, stored)
        unsigned = Blocks(f"uint{self._kept_bits}", size, self.scale_dtype, zero_points=True)
        dtype, zeros = NUMPY[unsigned.dtype], self._repeated(self.zeros)
        parts = {
            "weight": lambda: self.elements().view(dtype),
            "weight_scale": scales,
            "weight_zero_point": lambda: zeros().view(dtype),
        }
        return Matrix(self.shape, unsigned, parts, stored)

    def _signed(self) -> NDArray:
        half = 1 << (self.bits - 1)
        return (self.elements() ^ half if self.bits == 8 else self.elements().view(np.int8) - np.int8(half)).view(
            NUMPY[f"int{self._kept_bits}"]
        )

    @property
    def _kept_bits(self) -> int:
        return max(4, self.bits)

    @property
    def _repeats(self) -> int:
        """2 if a row has an odd number of 4-bit zero points, which are stored in pairs: groups are halved; else 1."""
        return 2 if self.zeros is not None and self._kept_bits == 4 and self.count > 1 and self.count % 2 else 1

    def _repeated(self, load: _Load) -> _Load:
        return lambda: np.repeat(load(), self._repeats, axis=-1)
