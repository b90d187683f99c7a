"""Weights as lazy expressions over the tensors of a source: made when the network is built, computed when written.

An expression knows its shape and the source tensors it needs without reading any of them, so that missing, unused and
misshapen tensors are found before any is read. Equal expressions are the same weight, which the network stores once
(tied embeddings).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Read = Callable[[str], NDArray]
Replacement = Callable[["SourceTensor | Transpose"], "WeightExpression | None"]


class WeightExpression(ABC):
    """One weight of the network."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""

    @abstractmethod
    def sources(self) -> Iterator["SourceTensor"]:
        """Every source tensor that the result needs; a tensor that is used twice may occur twice."""

    @abstractmethod
    def evaluate(self, read: Read) -> NDArray:
        """The result, in the floating type of its sources or in float32; if possible a view of ``read``'s result."""

    def by_rows(self, replacement: "Replacement") -> "WeightExpression | None":
        """The same expression over other tensors with as many rows; None if it takes anything but whole rows.

        ``replacement`` returns the replacement of a source tensor, or of its transpose; None if there is none.
        """
        del replacement
        return None

    def slice(self, start: int, stop: int, axis: int = 0) -> "Slice":
        """The part from ``start`` up to ``stop`` along ``axis``."""
        return Slice(self, start, stop, axis)

    def split(self, *extents: int, axis: int = 0) -> tuple["Slice", ...]:
        """Consecutive parts of these extents along ``axis``, such as the query, key and value of a fused tensor."""
        starts = [sum(extents[:number]) for number in range(len(extents))]
        return tuple(Slice(self, start, start + extent, axis) for start, extent in zip(starts, extents, strict=True))

    def split_heads(self, heads: int, *extents: int) -> tuple["RowsOfHeads", ...]:
        """Parts of ``extents`` rows of each of ``heads``, such as the queries, keys and values of a fused tensor."""
        starts = [sum(extents[:number]) for number in range(len(extents))]
        return tuple(RowsOfHeads(self, heads, start, start + n) for start, n in zip(starts, extents, strict=True))

    def transpose(self) -> "Transpose":
        """The matrix with its last two axes swapped."""
        return Transpose(self)

    def affine(self, scale: float = 1.0, offset: float = 0.0) -> "Affine":
        """scale * self + offset, computed in float32."""
        return Affine(self, scale, offset)


@dataclass(frozen=True)
class SourceTensor(WeightExpression):
    """A tensor as the source stores it, under the family's name."""

    name: str
    extents: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.extents

    def sources(self) -> Iterator["SourceTensor"]:
        yield self

    def by_rows(self, replacement: "Replacement") -> WeightExpression | None:
        return replacement(self)

    def evaluate(self, read: Read) -> NDArray:
        return read(self.name)


@dataclass(frozen=True)
class Ones(WeightExpression):
    """Ones, for norms without a weight."""

    extents: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.extents

    def sources(self) -> Iterator[SourceTensor]:
        yield from ()

    def evaluate(self, read: Read) -> NDArray:
        del read
        return np.ones(self.extents, np.float32)


@dataclass(frozen=True)
class OfOne(WeightExpression):
    """An expression with one operand, whose shape it has unless the subclass says otherwise."""

    operand: WeightExpression

    @property
    def shape(self) -> tuple[int, ...]:
        return self.operand.shape

    def sources(self) -> Iterator[SourceTensor]:
        return self.operand.sources()


@dataclass(frozen=True)
class _OfSeveral(WeightExpression):
    """An expression with several operands."""

    operands: tuple[WeightExpression, ...]

    def sources(self) -> Iterator[SourceTensor]:
        for operand in self.operands:
            yield from operand.sources()


@dataclass(frozen=True)
class Slice(OfOne):
    """A range of one axis; from a memory-mapped source only that range is read."""

    start: int
    stop: int
    axis: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        before = self.operand.shape
        return (*before[: self.axis], self.stop - self.start, *before[self.axis + 1 :])

    def by_rows(self, replacement: "Replacement") -> WeightExpression | None:
        operand = self.operand.by_rows(replacement) if self.axis == 0 else None
        return None if operand is None else replace(self, operand=operand)

    def evaluate(self, read: Read) -> NDArray:
        return self.operand.evaluate(read)[(slice(None),) * self.axis + (slice(self.start, self.stop),)]


@dataclass(frozen=True)
class RowsOfHeads(OfOne):
    """A range of the rows of each head; all heads have equally many rows, one head after the other."""

    heads: int
    start: int
    stop: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.heads * (self.stop - self.start), *self.operand.shape[1:])

    def by_rows(self, replacement: "Replacement") -> WeightExpression | None:
        operand = self.operand.by_rows(replacement)
        return None if operand is None else replace(self, operand=operand)

    def evaluate(self, read: Read) -> NDArray:
        rows = self.operand.evaluate(read)
        by_head = rows.reshape(self.heads, -1, *rows.shape[1:])
        return by_head[:, self.start : self.stop].reshape(-1, *rows.shape[1:])


@dataclass(frozen=True)
class Row(OfOne):
    """Row number ``index``, without its first axis."""

    index: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.operand.shape[1:]

    def evaluate(self, read: Read) -> NDArray:
        return self.operand.evaluate(read)[self.index]


@dataclass(frozen=True)
class RowsOrFirst(OfOne):
    """The first ``size`` rows; the first row again in place of those that the operand does not have."""

    size: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size, *self.operand.shape[1:])

    def evaluate(self, read: Read) -> NDArray:
        rows = self.operand.evaluate(read)[: self.size]
        result = np.empty(self.shape, rows.dtype)
        result[: len(rows)], result[len(rows) :] = rows, rows[0]
        return result


@dataclass(frozen=True)
class Columns(OfOne):
    """The columns with these numbers, which may repeat."""

    numbers: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.operand.shape[:-1], len(self.numbers))

    def evaluate(self, read: Read) -> NDArray:
        return self.operand.evaluate(read)[..., list(self.numbers)]


@dataclass(frozen=True)
class AsRow(OfOne):
    """A vector as the only row of a matrix."""

    @property
    def shape(self) -> tuple[int, ...]:
        return (1, *self.operand.shape)

    def evaluate(self, read: Read) -> NDArray:
        return self.operand.evaluate(read)[None]


@dataclass(frozen=True)
class ReorderedRows(OfOne):
    """The rows with these numbers."""

    numbers: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.numbers), *self.operand.shape[1:])

    def evaluate(self, read: Read) -> NDArray:
        return self.operand.evaluate(read)[list(self.numbers)]


@dataclass(frozen=True)
class Transpose(OfOne):
    """The operand with the last two axes swapped."""

    @property
    def shape(self) -> tuple[int, ...]:
        *rest, rows, columns = self.operand.shape
        return (*rest, columns, rows)

    def by_rows(self, replacement: "Replacement") -> WeightExpression | None:
        return replacement(self) if isinstance(self.operand, SourceTensor) else None

    def evaluate(self, read: Read) -> NDArray:
        return self.operand.evaluate(read).swapaxes(-1, -2)


@dataclass(frozen=True)
class Affine(OfOne):
    """scale * operand + offset in float32, for operands of any type; norms of models that store w - 1 need it."""

    scale: float = 1.0
    offset: float = 0.0

    def evaluate(self, read: Read) -> NDArray:
        return self.operand.evaluate(read).astype(np.float32) * np.float32(self.scale) + np.float32(self.offset)


@dataclass(frozen=True)
class Filled(OfOne):
    """A vector of ``size`` times the only element of the operand [1]."""

    size: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size,)

    def evaluate(self, read: Read) -> NDArray:
        return np.full(self.size, self.operand.evaluate(read))


@dataclass(frozen=True)
class MovedRows(_OfSeveral):
    """The rows of the first operand [rows, size], to each of which is added what the second has more than the third.

    The second and third operands are vectors [size]; the sum is computed in float32.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        return self.operands[0].shape

    def evaluate(self, read: Read) -> NDArray:
        rows, more, less = (operand.evaluate(read).astype(np.float32) for operand in self.operands)
        return rows + (more - less)


@dataclass(frozen=True)
class Concat(_OfSeveral):
    """Operands concatenated along ``axis``."""

    axis: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        first = self.operands[0].shape
        extent = sum(operand.shape[self.axis] for operand in self.operands)
        return (*first[: self.axis], extent, *first[self.axis + 1 :])

    def by_rows(self, replacement: "Replacement") -> WeightExpression | None:
        operands = [operand.by_rows(replacement) for operand in self.operands] if self.axis == 0 else [None]
        found = tuple(operand for operand in operands if operand is not None)
        return replace(self, operands=found) if len(found) == len(self.operands) else None

    def evaluate(self, read: Read) -> NDArray:
        first = self.operands[0].evaluate(read)
        if len(self.operands) == 1:
            return first
        result = np.empty(self.shape, first.dtype)
        stop = 0
        for operand in self.operands:  # only one operand is in memory at a time
            part = operand.evaluate(read)
            start, stop = stop, stop + part.shape[self.axis]
            result[(slice(None),) * self.axis + (slice(start, stop),)] = part
        return result


@dataclass(frozen=True)
class ByHead(OfOne):
    """The rows of each of ``heads`` as a separate matrix: [heads, rows / heads, columns]."""

    heads: int

    @property
    def shape(self) -> tuple[int, ...]:
        rows, *columns = self.operand.shape
        return (self.heads, rows // self.heads, *columns)

    def evaluate(self, read: Read) -> NDArray:
        return self.operand.evaluate(read).reshape(self.shape)


@dataclass(frozen=True)
class PaddedHeads(OfOne):
    """The rows of each of ``heads`` heads, and after them rows of zeros, so that each head has ``head_dim`` rows."""

    heads: int
    head_dim: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.heads * self.head_dim, *self.operand.shape[1:])

    def by_rows(self, replacement: "Replacement") -> WeightExpression | None:
        operand = self.operand.by_rows(replacement)
        return None if operand is None else replace(self, operand=operand)

    def evaluate(self, read: Read) -> NDArray:
        rows = self.operand.evaluate(read)
        by_head = rows.reshape(self.heads, -1, *rows.shape[1:])
        padded = np.zeros((self.heads, self.head_dim, *rows.shape[1:]), rows.dtype)
        padded[:, : by_head.shape[1]] = by_head
        return padded.reshape(self.shape)


@dataclass(frozen=True)
class HalvesFromPairs(OfOne):
    """The rows of a query or key projection, or its bias, reordered for RoPE by halves (:func:`halves_from_pairs`)."""

    heads: int
    rotary_dim: int | None = None

    def by_rows(self, replacement: "Replacement") -> WeightExpression | None:
        operand = self.operand.by_rows(replacement)
        return None if operand is None else replace(self, operand=operand)

    def evaluate(self, read: Read) -> NDArray:
        return halves_from_pairs(self.operand.evaluate(read), self.heads, self.rotary_dim)


def halves_from_pairs(rows: NDArray, heads: int, rotary_dim: int | None = None) -> NDArray:
    """Within each head, rows 2i and 2i+1 of the first ``rotary_dim`` (None: of all) go to i and i + rotary_dim/2.

    A model whose RoPE rotates neighbours (2i, 2i+1) becomes one that rotates (i, i + rotary_dim/2): with the rows of
    queries and keys reordered alike, their products do not change. ``rows`` is [heads * head_dim, …].
    """
    by_head = rows.reshape(heads, -1, *rows.shape[1:])
    rotated, rest = by_head[:, :rotary_dim], by_head[:, by_head.shape[1] if rotary_dim is None else rotary_dim :]
    pairs = rotated.reshape(heads, -1, 2, *rows.shape[1:])
    halves = pairs.swapaxes(1, 2).reshape(rotated.shape)
    return np.concatenate([halves, rest], 1).reshape(rows.shape)
