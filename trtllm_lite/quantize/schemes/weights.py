"""Defines how a scheme finds the elements of its matrices: each on its own, or together, by a solver."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trtllm_lite.network.dtypes import NUMPY, ONNX
from trtllm_lite.network.tensors import computed
from trtllm_lite.quantize.formats import QuantizedFormat, Scaled
from trtllm_lite.quantize.products import Product
from trtllm_lite.quantize.rounding.gptq import gptq
from trtllm_lite.quantize.rounding.grid import Blocks, Grid, Matrix
from trtllm_lite.quantize.rounding.numbers import Numbers
from trtllm_lite.quantize.schemes.scheme import Needs
from trtllm_lite.quantize.schemes.workpiece import Workpiece
from trtllm_lite.quantize.threads import Parts

Solution = tuple[Matrix, Grid]


class Weights(ABC):
    """Stores matrices in one ``format``; ``needs`` are the statistics it needs of calibration."""

    format: Scaled
    needs = Needs.NOTHING

    @abstractmethod
    def store(self, work: Workpiece, product: Product) -> None:
        """Store the product's matrix, with all its factors. The matrix is read only when the result is read."""


@dataclass(frozen=True)
class Nearest(Weights):
    """Rounds every element to the nearest of the format."""

    format: Scaled

    def store(self, work: Workpiece, product: Product) -> None:
        """Implements :meth:`Weights.store`."""
        work.store(product, self.format)


@dataclass(frozen=True)
class Gptq(Weights):
    """Lets the errors of a row compensate each other (arXiv 2210.17323); ``numbers`` are the elements of the format.

    The errors are those for inputs from the unquantized network. A scale serves ``size`` elements of a row, or the
    whole row if ``size`` is 0.
    """

    format: Scaled
    numbers: Numbers
    size: int = 0
    needs = Needs.GRAM

    def store(self, work: Workpiece, product: Product) -> None:
        """Implements :meth:`Weights.store`."""
        blocks = Blocks(self.size or product.in_features, self.numbers)

        def solve() -> Solution:
            gram, columns = work.statistics(product).gram, work.columns(product)
            assert gram is not None
            return gptq(work.matrix(product), gram / np.outer(columns, columns), blocks, product.name)

        store_solution(work, product, self.format, blocks, solve)


def store_solution(
    work: Workpiece, product: Product, weights: QuantizedFormat, blocks: Blocks, solve: Callable[[], Solution]
) -> None:
    """Store the result of ``solve`` in the format ``weights``."""
    rows, columns = product.matrix.shape
    numbers = blocks.numbers

    def compute() -> dict[str, np.ndarray]:
        elements, grid = solve()
        parts = {"weight": elements.reshape(rows, columns).astype(NUMPY[numbers.dtype]), "weight_scale": grid.scales}
        return parts | ({"weight_offset": -grid.zeros * grid.scales} if numbers.zero_points else {})

    parts = Parts(compute)

    def part(operand: str, kind: ir.DataType, width: int) -> ir.TensorProtocol:
        return computed(lambda: parts.take(operand), kind, (rows, width))

    count = columns // blocks.size
    tensors = {
        "weight": part("weight", ONNX[numbers.dtype], columns),
        "weight_scale": part("weight_scale", ir.DataType.FLOAT, count),
    }
    if numbers.zero_points:
        tensors["weight_offset"] = part("weight_offset", ir.DataType.FLOAT, count)
    work.store_tensors(product, weights, tensors)
