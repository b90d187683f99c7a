"""FP8 (E4M3) for weights and activations: FP8 Formats for Deep Learning (arXiv 2209.05433).

Weights have a scale for each output feature, which costs kernels nothing. Activations have one scale that calibration
finds (:class:`Fp8`), or one for each token, computed at run time (:class:`Fp8Rowwise`).
"""

from collections.abc import Sequence

import numpy as np

from trtllm_lite.quantize.activations import LARGEST
from trtllm_lite.quantize.products import Product
from trtllm_lite.quantize.schemes.scheme import Needs, Scheme
from trtllm_lite.quantize.schemes.weights import Weights
from trtllm_lite.quantize.schemes.workpiece import Workpiece

_FP8 = "float8_e4m3fn"


class Fp8(Scheme):
    """Activations have one scale: calibration's largest magnitude becomes FP8's largest; larger ones are clipped."""

    def __init__(self, name: str, weights: Weights) -> None:
        self.name, self.needs, self._weights = name, max(Needs.CHANNELS, weights.needs), weights
        self.experts = weights.format

    def quantize(self, work: Workpiece, products: Sequence[Product]) -> None:
        """Implements :meth:`Scheme.quantize`."""
        for product in products:
            largest = float(np.max(work.statistics(product).abs_max))
            self._weights.store(work, product)
            work.round_tensor(product, _FP8, largest / LARGEST[_FP8] if largest else 1.0)


class Fp8Rowwise(Scheme):
    """Each token is scaled so that its largest magnitude becomes the largest number of FP8."""

    def __init__(self, name: str, weights: Weights) -> None:
        self.name, self.needs, self._weights = name, weights.needs, weights
        self.experts = weights.format

    def quantize(self, work: Workpiece, products: Sequence[Product]) -> None:
        """Implements :meth:`Scheme.quantize`."""
        for product in products:
            self._weights.store(work, product)
            work.round_tokens(product, _FP8)
