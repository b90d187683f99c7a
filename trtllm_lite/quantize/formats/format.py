"""Defines the interface of a format; all other code handles stored matrices without looking into them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnx_ir as ir

from trtllm_lite.network.tensors import add_initializer, concatenate, extents, stack

Join = Callable[[Sequence[ir.TensorProtocol]], ir.TensorProtocol]


@dataclass(frozen=True)
class StoredMatrix:
    """A matrix [..., out, in] in one format; ``operands`` are initializers by their names in fused operators.

    An operand that a format derives from the network's tensors becomes an initializer only in :meth:`within`.
    """

    format: "Format"
    operands: Mapping[str, ir.Value]

    def within(self, graph: ir.Graph) -> dict[str, ir.Value]:
        """The operands as initializers of ``graph``; a derived one is added once for all readers."""
        for value in self.operands.values():
            if not value.is_initializer() and value.name not in graph.initializers:
                graph.register_initializer(value)
        return {operand: graph.initializers[str(value.name)] for operand, value in self.operands.items()}

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the dequantized matrix."""
        return extents(self.tensor("weight"))

    @property
    def form(self) -> tuple[str, ...]:
        """A key that is equal for matrices that can be joined."""
        tensors = {operand: self.tensor(operand) for operand in self.operands}
        kinds = (f"{operand} {tensor.dtype.name} {extents(tensor)[-1]}" for operand, tensor in tensors.items())
        return (self.format.name, *kinds)

    def tensor(self, operand: str) -> ir.TensorProtocol:
        """The tensor that is stored as ``operand``; its data may be on disk still."""
        tensor = self.operands[operand].const_value
        assert tensor is not None
        return tensor


class Rows(Protocol):
    """A matrix [out, in] whose rows are computed when a slice of them is read; an array fits this interface."""

    def __len__(self) -> int: ...

    def __getitem__(self, some: slice, /) -> np.ndarray: ...


class Format(ABC):
    """One way to store a matrix of float32 [out, in]; rows, one for each output feature, are stored independently.

    ``operands`` are the tensors that it may take, ``weight`` and perhaps others; ``weight_dtypes`` tell it from other
    formats.
    """

    name: str
    operands: tuple[str, ...]
    weight_dtypes: tuple[ir.DataType, ...]

    @abstractmethod
    def recognise(self, value: ir.Value | None) -> StoredMatrix | None:
        """The matrix, if the network makes the float32 ``value`` of a weight stored in this format."""

    @abstractmethod
    def dequantize(self, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
        """The float32 matrix [..., out, in] that ``tensors``, by operand, stand for: the reference for all kernels."""

    def concatenate(self, graph: ir.Graph, path: str, matrices: Sequence[StoredMatrix]) -> StoredMatrix:
        """The rows of ``matrices``, all of one form, one after the other: a merged projection of q, k and v."""
        return self._joined(graph, path, concatenate, matrices)

    def stack(self, graph: ir.Graph, path: str, matrices: Sequence[StoredMatrix]) -> StoredMatrix:
        """``matrices`` of one form and shape along a new first axis: gate and up projections."""
        return self._joined(graph, path, stack, matrices)

    def _joined(self, graph: ir.Graph, path: str, join: Join, matrices: Sequence[StoredMatrix]) -> StoredMatrix:
        def joined(operand: str) -> ir.Value:
            return add_initializer(graph, f"{path}.{operand}", join([matrix.tensor(operand) for matrix in matrices]))

        return StoredMatrix(self, {operand: joined(operand) for operand in matrices[0].operands})


class QuantizedFormat(Format):
    """A format that weights are converted to."""

    @abstractmethod
    def pack(self, matrix: Rows) -> dict[str, np.ndarray]:
        """The tensors, by operand, that store a float matrix [out, in]."""

    @abstractmethod
    def quantized(self, shape: Sequence[int], matrix: Callable[[], Rows]) -> dict[str, ir.TensorProtocol]:
        """The result of :meth:`pack` for the return value of ``matrix``, of that shape, computed when it is read."""

    @abstractmethod
    def express(
        self, graph: ir.Graph, before: ir.Node, name: str, tensors: Mapping[str, ir.TensorProtocol]
    ) -> ir.Value:
        """The float32 value of ``tensors``, by operand, made by standard operators in front of ``before``.

        :meth:`recognise` recognises this value.
        """


def initializer(value: ir.Value | None) -> ir.Value | None:
    """``value`` if it is a weight, or None."""
    return value if value is not None and value.is_initializer() and value.const_value is not None else None


def derived(name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """An operand derived from the network's tensors; equal names must mean equal content."""
    return ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(extents(tensor)), const_value=tensor)


def made_by(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """The standard operator that makes ``value``, if its type is ``op_type``; else None."""
    node = None if value is None else value.producer()
    return node if node is not None and node.domain == "" and node.op_type == op_type else None
