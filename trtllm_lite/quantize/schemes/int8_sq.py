"""SmoothQuant (arXiv 2211.10438): int8 weights and activations, the latter after moving their outliers into weights."""

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.quantize.formats import Int8PerChannel
from trtllm_lite.quantize.products import Product, by_input
from trtllm_lite.quantize.schemes.folding import NotFoldableError, fold
from trtllm_lite.quantize.schemes.scheme import Needs, Scheme
from trtllm_lite.quantize.schemes.workpiece import Factors, Workpiece

_ALPHA = 0.5  # how much of the difference between channels goes to the weights: section 4.2
_MIN_FACTOR = 1e-5


class Int8SmoothQuant(Scheme):
    """Weights have a scale for each output feature, activations one for each token."""

    name = "int8_sq"
    description = "int8, activations as int8 with a scale for each token, after smoothing (SmoothQuant)"
    needs = Needs.CHANNELS

    def quantize(self, work: Workpiece, products: Sequence[Product]) -> None:
        """As :meth:`Scheme.quantize`."""
        for name, group in by_input(products).items():
            try:
                fold(work, group[0].x, _smoothing(work, name, group))
                work.decide(name, "smoothed")
            except NotFoldableError as error:
                work.decide(name, f"not smoothed: {error}")
        for product in products:
            work.store(product, Int8PerChannel())
            work.round_tokens(product, "int8")


def _smoothing(work: Workpiece, name: str, group: Sequence[Product]) -> Factors:
    """max|x|^alpha / max|W|^(1-alpha) of each channel: equation 4."""

    @cache
    def factors() -> NDArray[np.float32]:
        statistics = work.statistics(group[0])
        statistics.check_channels(name, Int8SmoothQuant.name)
        weights = np.max([np.abs(product.matrix.tensor("weight").numpy()).max(0) for product in group], 0)
        largest = np.maximum(weights.astype(np.float32), _MIN_FACTOR)
        return np.maximum(statistics.abs_max**_ALPHA / largest ** (1 - _ALPHA), np.float32(_MIN_FACTOR))

    return factors
