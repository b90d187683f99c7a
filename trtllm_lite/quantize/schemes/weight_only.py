"""Weight-only quantization to 8 bits with a scale for each output feature."""

from collections.abc import Sequence

from trtllm_lite.quantize.products import Product
from trtllm_lite.quantize.schemes.scheme import Scheme
from trtllm_lite.quantize.schemes.weights import Weights
from trtllm_lite.quantize.schemes.workpiece import Workpiece


class WeightOnly(Scheme):
    """Activations stay unquantized."""

    def __init__(self, name: str, weights: Weights) -> None:
        self.name, self.needs, self._weights = name, weights.needs, weights
        self.experts = weights.format

    def quantize(self, work: Workpiece, products: Sequence[Product]) -> None:
        """Implements :meth:`Scheme.quantize`."""
        for product in products:
            self._weights.store(work, product)
