"""FP8 (E4M3) for weights and activations: FP8 Formats for Deep Learning (arXiv 2209.05433).

Weights have a scale for each output feature, which costs kernels nothing. Activations have one scale that calibration
finds (``fp8``), or one for each token, which is found as they come (``fp8_rowwise``).
"""

from collections.abc import Sequence

from trtllm_lite.quantize.activations import LARGEST
from trtllm_lite.quantize.formats import Float8
from trtllm_lite.quantize.products import Product
from trtllm_lite.quantize.schemes.scheme import Needs, Scheme
from trtllm_lite.quantize.schemes.workpiece import Workpiece

_FP8 = "float8_e4m3fn"


class Fp8(Scheme):
    """The largest magnitude that calibration saw becomes the largest number of FP8; what is larger is clipped."""

    name = "fp8"
    needs = Needs.CHANNELS

    def quantize(self, work: Workpiece, products: Sequence[Product]) -> None:
        """As :meth:`Scheme.quantize`."""
        for product in products:
            largest = float(work.statistics(product).abs_max.max())
            work.store(product, Float8())
            work.round_tensor(product, _FP8, largest / LARGEST[_FP8] if largest else 1.0)


class Fp8Rowwise(Scheme):
    """Needs no calibration."""

    name = "fp8_rowwise"

    def quantize(self, work: Workpiece, products: Sequence[Product]) -> None:
        """As :meth:`Scheme.quantize`."""
        for product in products:
            work.store(product, Float8())
            work.round_tokens(product, _FP8)
