"""Weight-only quantization to bytes with a scale for each output feature, rounded to the nearest."""

from collections.abc import Sequence

from trtllm_lite.quantize.formats import Float8, Int8, QuantizedFormat
from trtllm_lite.quantize.products import Product
from trtllm_lite.quantize.schemes.scheme import Scheme
from trtllm_lite.quantize.schemes.workpiece import Workpiece


class WeightOnly(Scheme):
    """Matrices in ``weights``; needs no calibration."""

    def __init__(self, name: str, weights: QuantizedFormat) -> None:
        self.name, self._weights = name, weights

    def quantize(self, work: Workpiece, products: Sequence[Product]) -> None:
        """As :meth:`Scheme.quantize`."""
        for product in products:
            work.store(product, self._weights)


INT8_WO = WeightOnly("int8_wo", Int8())
FP8_WO = WeightOnly("fp8_wo", Float8())
