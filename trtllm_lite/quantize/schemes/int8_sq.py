"""SmoothQuant (arXiv 2211.10438): int8 weights and activations, whose outliers are first moved into weights."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.quantize.activations import LARGEST
from trtllm_lite.quantize.formats import Int8
from trtllm_lite.quantize.products import Product, by_input
from trtllm_lite.quantize.schemes.folding import NotFoldableError, Source, fold, source_of
from trtllm_lite.quantize.schemes.scheme import Needs, Scheme
from trtllm_lite.quantize.schemes.workpiece import Factors, Workpiece
from trtllm_lite.quantize.threads import Once

# Migration strengths (section 4.2): how much of the difference between channels moves from activations to weights. The
# best is chosen for each input.
_ALPHAS = np.arange(10) / 10
_MIN_FACTOR = np.float32(1e-5)
_SEARCHED_ROWS = 4096  # limit of the rows that the search reads of all matrices of an input
_FORMAT = Int8()
Shared = Callable[[NDArray[np.float32]], NDArray[np.float32]]


class Int8SmoothQuant(Scheme):
    """Weights have a scale for each output feature, activations one for each token."""

    name = "int8_sq"
    experts = _FORMAT
    needs = Needs.CHANNELS
    folds = True

    def quantize(self, work: Workpiece, products: Sequence[Product]) -> None:
        """Implements :meth:`Scheme.quantize`."""
        for name, group in by_input(products).items():
            try:
                source = source_of(work, group[0].x)
                fold(work, source, self._smoothing(work, name, group, source))
                work.decide(name, "smoothed")
            except NotFoldableError as error:
                work.decide(name, f"not smoothed: {error}")
        for product in products:
            work.store(product, _FORMAT)
            work.round_tokens(product, "int8")

    def _smoothing(self, work: Workpiece, name: str, group: Sequence[Product], source: Source) -> Factors:
        def factors() -> NDArray[np.float32]:
            statistics = work.statistics(group[0])
            statistics.check_channels(name, self.name)
            weight = np.concatenate([work.matrix_before(product) for product in group])
            measures = (statistics.abs_max, statistics.abs_mean)
            return smoothing_factors(weight, measures, statistics.sample, source.shared)

        return Once(factors)


def smoothing_factors(
    weight: NDArray[np.float32],
    magnitudes: Sequence[NDArray[np.float32]],
    sample: NDArray[np.float32],
    shared: Shared = np.asarray,
) -> NDArray[np.float32]:
    """magnitude^alpha / max|W|^(1-alpha) of each channel (equation 4), or 1 for all.

    ``magnitudes`` are measures of the size of the channels of x. Equation 4 takes max|x|; if few tokens reach the
    maximum, the mean of |x| describes better what a token's scale has to cover. The measure and the alpha with the
    least error are chosen, by rounding and multiplying rows of ``sample`` and of ``weight`` [out, in]. Channels that
    share a factor use the maximum over all of them, which ``shared`` computes.
    """
    w_max = np.maximum(shared(np.abs(weight).max(0)), _MIN_FACTOR)
    weight = weight[:: -(-len(weight) // _SEARCHED_ROWS)]
    exact = sample @ weight.T
    measures = [shared(magnitude) for magnitude in magnitudes]
    best, least = np.ones_like(w_max), np.inf
    candidates = [best, *(x**alpha / w_max ** (1 - alpha) for x in measures for alpha in _ALPHAS)]
    for factors in (np.maximum(candidate, _MIN_FACTOR).astype(np.float32) for candidate in candidates):
        rounded = _FORMAT.dequantize(_FORMAT.pack(weight * factors))
        error = float(np.square(_round_tokens(sample / factors) @ rounded.T - exact).sum(dtype=np.float64))
        if error < least:
            best, least = factors, error
    return best


def _round_tokens(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    scale = np.maximum(np.abs(rows).max(1, keepdims=True) / np.float32(LARGEST["int8"]), np.float32(1e-30))
    return np.rint(rows / scale) * scale
