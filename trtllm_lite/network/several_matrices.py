"""Defines weight expressions over tensors that hold several matrices, such as those of the experts of a layer."""

from dataclasses import dataclass
from math import prod

from numpy.typing import NDArray

from trtllm_lite.network.weight_expression import OfOne, Read, Replacement, WeightExpression


@dataclass(frozen=True)
class RowsOfMatrices(OfOne):
    """The rows of several matrices [matrices, rows, depth], or the elements of vectors, one matrix after the other."""

    @property
    def shape(self) -> tuple[int, ...]:
        matrices, rows, *depth = self.operand.shape
        return (matrices * rows, *depth)

    def evaluate(self, read: Read) -> NDArray:
        return self.operand.evaluate(read).reshape(self.shape)


@dataclass(frozen=True)
class Elements(OfOne):
    """All elements of a tensor as a vector."""

    @property
    def shape(self) -> tuple[int, ...]:
        return (prod(self.operand.shape),)

    def evaluate(self, read: Read) -> NDArray:
        return self.operand.evaluate(read).reshape(self.shape)


@dataclass(frozen=True)
class ColumnsOfMatrices(OfOne):
    """The columns of several matrices [matrices, depth, columns] as rows, one matrix after the other.

    Sources that store such a tensor in blocks use this order.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        matrices, depth, columns = self.operand.shape
        return (matrices * columns, depth)

    def by_rows(self, replacement: Replacement) -> WeightExpression | None:
        return self.operand.by_rows(replacement)

    def evaluate(self, read: Read) -> NDArray:
        return self.operand.evaluate(read).swapaxes(-1, -2).reshape(self.shape)
