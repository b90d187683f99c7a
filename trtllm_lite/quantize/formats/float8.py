"""8-bit floating-point numbers: 4 bits of exponent, 3 of fraction (OCP 8-bit Floating Point Specification, E4M3)."""

from functools import cache

import ml_dtypes
import numpy as np
import onnx_ir as ir

from trtllm_lite.quantize.formats.scaled import Scaled


class Float8(Scaled):
    """weight float8_e4m3fn; the elements of a float matrix's block are scaled to at most 448."""

    name = "float8"
    weight_dtypes = (ir.DataType.FLOAT8E4M3FN,)
    largest = 448

    def write(self, elements: np.ndarray, to: np.ndarray) -> None:
        """Implements :meth:`Scaled.write` by a table of all 16-bit numbers, four times as fast.

        The upper half of a float32, made odd where the lower half is not zero, lies between the same two FP8 numbers
        and on the same side of their middle: rounding to odd before rounding to the nearest is exact (Boldo and
        Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd").
        """
        halves = elements.view("<u2").reshape(*elements.shape, 2)
        np.take(_of_upper_halves(), halves[..., 1] | (halves[..., 0] != 0), out=to.view(np.uint8), mode="clip")


@cache
def _of_upper_halves() -> np.ndarray:
    """uint8[65536]: the FP8 number nearest to the float32 with these upper 16 bits."""
    values = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):  # some of them are NaN
        nearest: np.ndarray = values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return nearest
