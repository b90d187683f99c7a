"""Describes the numbers that elements of a matrix are rounded to, before they are multiplied by a scale."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.network.dtypes import NUMPY

# The smallest scale that float16 holds with full precision.
_LEAST_FLOAT16 = float(np.finfo(np.float16).tiny)


@dataclass(frozen=True)
class Numbers(ABC):
    """Numbers from ``least`` to ``largest``, stored as ``dtype``; their scales are at least ``least_scale``."""

    dtype: str
    least: float
    largest: float
    least_scale: float = float(np.finfo(np.float32).tiny)

    @property
    def zero_points(self) -> bool:
        """Whether the numbers need a zero point: a number that stands for 0."""
        return self.least == 0

    def nearest(self, scaled: NDArray[np.float32]) -> NDArray[np.float32]:
        """The numbers nearest to ``scaled``, halves to even."""
        return self._rounded(np.clip(scaled, np.float32(self.least), np.float32(self.largest)))

    @abstractmethod
    def _rounded(self, clipped: NDArray[np.float32]) -> NDArray[np.float32]: ...


class Integers(Numbers):
    """All integers in the range."""

    def _rounded(self, clipped: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.rint(clipped)


class Floats(Numbers):
    """The floating-point numbers of ``dtype`` in the range."""

    def _rounded(self, clipped: NDArray[np.float32]) -> NDArray[np.float32]:
        rounded: NDArray[np.float32] = clipped.astype(NUMPY[self.dtype]).astype(np.float32)
        return rounded


# Scales of groups of 4-bit numbers are stored in 16 bits, scales of FP8 rows in 32.
INT4 = Integers("int4", -8, 7, _LEAST_FLOAT16)
UINT4 = Integers("uint4", 0, 15, _LEAST_FLOAT16)
FP8 = Floats("float8_e4m3fn", -448, 448)
