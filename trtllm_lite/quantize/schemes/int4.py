"""4-bit weights with a scale for each block of a row: rounded to nearest, by AWQ or by GPTQ."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.quantize.formats import Int4
from trtllm_lite.quantize.products import Product, by_input
from trtllm_lite.quantize.rounding.awq import channel_factors, clipped
from trtllm_lite.quantize.rounding.grid import Blocks
from trtllm_lite.quantize.rounding.numbers import INT4, UINT4
from trtllm_lite.quantize.schemes.folding import NotFoldableError, Source, fold, source_of
from trtllm_lite.quantize.schemes.scheme import Needs, Scheme
from trtllm_lite.quantize.schemes.weights import Gptq, Solution, store_solution
from trtllm_lite.quantize.schemes.workpiece import Factors, Workpiece
from trtllm_lite.quantize.threads import Once


class _InGroups(Scheme):
    """A scheme with weights in groups of a size that users choose."""

    experts = Int4()
    in_groups = True


class Int4WeightOnly(_InGroups):
    """Rounding to nearest, which needs no calibration."""

    name = "int4_wo"

    def quantize(self, work: Workpiece, products: Sequence[Product]) -> None:
        """Implements :meth:`Scheme.quantize`."""
        for product in products:
            work.store(product, Int4(block_size=work.check_groups(product, self.name)))


class Int4Gptq(_InGroups):
    """GPTQ (arXiv 2210.17323), without zero points."""

    name = "int4_gptq"
    needs = Needs.GRAM

    def quantize(self, work: Workpiece, products: Sequence[Product]) -> None:
        """Implements :meth:`Scheme.quantize`."""
        for product in products:
            size = work.check_groups(product, self.name)
            Gptq(Int4(block_size=size), INT4, size).store(work, product)


class Int4Awq(_InGroups):
    """AWQ (arXiv 2306.00978), with zero points: channels are scaled if factors can be folded, and blocks clipped."""

    name = "int4_awq"
    needs = Needs.CHANNELS
    folds = True

    def quantize(self, work: Workpiece, products: Sequence[Product]) -> None:
        """Implements :meth:`Scheme.quantize`."""
        blocks = Blocks(work.group_size, UINT4)
        for name, group in by_input(products).items():
            for product in group:
                work.check_groups(product, self.name)
            try:
                source = source_of(work, group[0].x)
                fold(work, source, self._scaling(work, name, group, blocks, source))
                work.decide(name, "scaled")
            except NotFoldableError as error:
                work.decide(name, f"not scaled: {error}")
        for product in products:
            weights = Int4(block_size=blocks.size)
            store_solution(work, product, weights, blocks, self._rounding(work, product, blocks))

    def _scaling(self, work: Workpiece, name: str, group: Sequence[Product], blocks: Blocks, source: Source) -> Factors:
        def factors() -> NDArray[np.float32]:
            statistics = work.statistics(group[0])
            statistics.check_channels(name, self.name)
            matrices = [work.matrix_before(product) for product in group]
            return channel_factors(matrices, source.shared(statistics.abs_mean), statistics.sample, blocks, name)

        return Once(factors)

    @staticmethod
    def _rounding(work: Workpiece, product: Product, blocks: Blocks) -> Callable[[], Solution]:
        def rounded() -> Solution:
            matrix, sample = work.matrix(product), work.statistics(product).sample / work.columns(product)
            grid = clipped(matrix, sample, blocks, product.name)
            return grid.nearest(blocks.split(matrix, product.name)), grid

        return rounded
