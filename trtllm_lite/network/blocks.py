"""Describes matrices that a source stores in blocks, with a scale for each block of a row, and writes them as ONNX.

A matrix [rows, depth] is scale * (element - zero point) + offset. Its parts are separate tensors: ``weight`` [rows,
depth], ``weight_scale`` [rows, blocks] ([rows] if a row is one block), perhaps ``weight_zero_point`` of the same shape,
perhaps ``weight_offset`` [rows, blocks, 1]. ``input_factor`` [depth] scales the features of input activations,
``input_order`` [depth] lists the features of activations in the order of the matrix's columns.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trtllm_lite.network.weight_expression import Read, SourceTensor, WeightExpression

PARTS = ("weight", "weight_scale", "weight_zero_point", "weight_offset", "input_factor", "input_order")
_FLOAT = ir.DataType.FLOAT

# A function that adds an operator with a float32 result: type, inputs, end of the name, output shape, attributes.
AddOperator = Callable[[str, Sequence[ir.Value], str, Sequence[int | ir.SymbolicDim], Mapping[str, int]], ir.Value]
AddConstant = Callable[[str, NDArray], ir.Value]


@dataclass(frozen=True)
class Rounding:
    """The rounding of activations to numbers of dtype ``to`` times ``scale``; if None, each token has its own scale."""

    to: str
    scale: float | None = None


@dataclass(frozen=True)
class Blocks:
    """The form of a stored matrix: the dtypes of its parts and the length of its blocks, which are parts of rows.

    ``factors`` identifies the factors of its input activations by a digest ("" for none), so that matrices with equal
    factors share the scaled activations. ``order`` identifies the order of features in the same way. ``rounding`` is
    then applied to activations; None leaves them unrounded.
    """

    dtype: str
    block_size: int
    scale_dtype: str
    offset_dtype: str | None = None
    zero_points: bool = False
    factors: str = ""
    order: str = ""
    rounding: Rounding | None = None

    @property
    def changes_input(self) -> bool:
        """Whether the matrix multiplies activations that were scaled, reordered or rounded."""
        return bool(self.factors or self.order or self.rounding is not None)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parts of the matrix."""
        absent = {"weight_zero_point": not self.zero_points, "weight_offset": self.offset_dtype is None}
        return tuple(part for part in PARTS[:4] if not absent.get(part))

    def part(self, tensor: SourceTensor, name: str) -> "Part":
        """One of the parts of ``tensor``."""
        rows, depth = rows_and_depth(tensor.extents)
        blocks = depth // self.block_size
        scales = (rows, blocks) if blocks > 1 else (rows,)
        shapes = ((rows, depth), scales, scales, (rows, blocks, 1), (depth,), (depth,))
        return Part(tensor, name, dict(zip(PARTS, shapes, strict=True))[name])

    def dtype_of(self, part: str) -> str:
        """The dtype of a part of the matrix."""
        dtypes = (self.dtype, self.scale_dtype, self.dtype, self.offset_dtype, "float32", "int32")
        dtype = dict(zip(PARTS, dtypes, strict=True))[part]
        assert dtype is not None
        return dtype


@dataclass(frozen=True)
class Part(WeightExpression):
    """A part of a source tensor that is stored in blocks."""

    tensor: SourceTensor
    part: str
    extents: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name of the weight."""
        return f"{self.tensor.name.removesuffix('.weight')}.{self.part}"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.extents

    def sources(self) -> Iterator[SourceTensor]:
        yield self.tensor

    def evaluate(self, read: Read) -> NDArray:
        return read(part_name(self.tensor.name, self.part)).reshape(self.extents)


def rows_and_depth(extents: tuple[int, ...]) -> tuple[int, int]:
    """The rows and depth of a matrix [rows, depth] in blocks, or of several matrices, [matrices, depth, columns].

    The latter are stored by columns (:class:`ColumnsOfMatrices`), one matrix after the other.
    """
    if len(extents) == 2:
        return extents[0], extents[1]
    matrices, depth, columns = extents
    return matrices * columns, depth


def part_name(tensor: str, part: str) -> str:
    """The name by which a part of a tensor in blocks is read."""
    return f"{tensor}/{part}"


def dequantize(
    add: AddOperator, constant: AddConstant, parts: Mapping[str, ir.Value], shape: tuple[int, int], blocks: int
) -> ir.Value:
    """The float32 matrix of ``shape`` whose ``parts`` are weights of a graph."""

    def as_float32(part: str) -> ir.Value:
        value = parts[part]
        if value.dtype == _FLOAT:
            return value
        dims = tuple(dim for dim in value.shape or () if isinstance(dim, int))
        return add("Cast", [value], f"{part}.cast", dims, {"to": _FLOAT.value})

    rows, depth = shape
    attributes = {"axis": 1, "block_size": depth // blocks} if blocks > 1 else {"axis": 0}
    zero_points = [parts["weight_zero_point"]] if "weight_zero_point" in parts else []
    operands = [parts["weight"], as_float32("weight_scale"), *zero_points]
    result = add("DequantizeLinear", operands, "dequantized", shape, attributes)
    if "weight_offset" not in parts:
        return result
    cut = (rows, blocks, depth // blocks)
    in_blocks = add("Reshape", [result, constant("blocks.shape", np.array(cut))], "blocks", cut, {})
    added = add("Add", [in_blocks, as_float32("weight_offset")], "offset", cut, {})
    return add("Reshape", [added, constant("matrix.shape", np.array(shape))], "matrix", shape, {})
