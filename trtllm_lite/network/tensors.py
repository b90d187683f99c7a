"""Defines tensors that are computed when they are read, and operations on them.

Each evaluation reads its sources again, without a cache, so that a build holds one weight at a time.
"""

from collections.abc import Callable, Sequence
from math import ceil, prod
from pathlib import Path

import numpy as np
import onnx_ir as ir

from trtllm_lite.common.nibbles import unpaired
from trtllm_lite.errors import EngineError


class Computed(ir.LazyTensor):
    """A tensor whose evaluation is mostly arithmetic, which threads speed up; other tensors are mostly read."""


class Stored(ir.LazyTensor):
    """A tensor whose bytes, little-endian and row-major, are at byte ``offset`` of the file ``path``."""

    def __init__(
        self, load: Callable[[], ir.TensorProtocol], dtype: ir.DataType, shape: Sequence[int], path: Path, offset: int
    ) -> None:
        super().__init__(load, dtype=dtype, shape=ir.Shape(shape))
        self.file, self.offset = path, offset


def lazy(
    load: Callable[[], np.ndarray], dtype: ir.DataType, shape: Sequence[int], of: Sequence[ir.TensorProtocol] = ()
) -> ir.LazyTensor:
    """A tensor that ``load`` makes from the tensors ``of``; it is a :class:`Computed` one if one of these is."""
    if any(isinstance(tensor, Computed) for tensor in of):
        return computed(load, dtype, shape)
    return ir.LazyTensor(lambda: ir.Tensor(load(), dtype=dtype), dtype=dtype, shape=ir.Shape(shape))


def computed(load: Callable[[], np.ndarray], dtype: ir.DataType, shape: Sequence[int]) -> Computed:
    """Like :func:`lazy`, for a ``load`` with much arithmetic."""
    return Computed(lambda: ir.Tensor(load(), dtype=dtype), dtype=dtype, shape=ir.Shape(shape))


def stored(path: Path, offset: int, dtype: ir.DataType, shape: Sequence[int]) -> Stored:
    """The tensor at byte ``offset`` of a file, little-endian, row-major."""
    num_bytes = ceil(prod(shape) * dtype.itemsize)

    def load() -> np.ndarray:
        try:
            data = np.fromfile(path, dtype=np.uint8, count=num_bytes, offset=offset)
        except OSError as error:
            raise EngineError(
                f"cannot read weights from {path}: {error.strerror}: check the file and its rights"
            ) from error
        if data.size != num_bytes:
            raise EngineError(f"expected {num_bytes} bytes at {offset} of {path}, found {data.size}: convert again")
        return unpaired(data, dtype.numpy())[: prod(shape)].reshape(shape)

    return Stored(lambda: ir.Tensor(load(), dtype=dtype), dtype, shape, path, offset)


def absent(name: str, dtype: ir.DataType, shape: Sequence[int]) -> ir.LazyTensor:
    """A tensor of a model without weights: it has only a shape."""

    def load() -> np.ndarray:
        raise EngineError(f"a model config has no weights, {name} was asked for: pass a checkpoint or --strip_plan")

    return lazy(load, dtype, shape)


def extents(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    """The shape of a tensor in integers; tensors, unlike values, have no symbols."""
    return tuple(dim for dim in tensor.shape if isinstance(dim, int))


def concatenate(tensors: Sequence[ir.TensorProtocol], axis: int = 0) -> ir.LazyTensor:
    """``tensors`` of one dtype joined along ``axis``."""
    shape = list(extents(tensors[0]))
    shape[axis] = sum(extents(tensor)[axis] for tensor in tensors)
    return lazy(lambda: np.concatenate([tensor.numpy() for tensor in tensors], axis), tensors[0].dtype, shape, tensors)


def stack(tensors: Sequence[ir.TensorProtocol], axis: int = 0) -> ir.LazyTensor:
    """``tensors`` of one dtype and shape along a new ``axis``."""
    first = extents(tensors[0])
    shape = (*first[:axis], len(tensors), *first[axis:])
    return lazy(lambda: np.stack([tensor.numpy() for tensor in tensors], axis), tensors[0].dtype, shape, tensors)


def take(tensor: ir.TensorProtocol, axis: int, ranges: Sequence[tuple[int, int]]) -> ir.LazyTensor:
    """The elements ``ranges`` (from, to) of ``tensor`` along ``axis``, concatenated; zeros beyond its end."""
    shape = list(extents(tensor))
    end, length = shape[axis], sum(stop - start for start, stop in ranges)
    shape[axis] = length

    def load() -> np.ndarray:
        source = np.moveaxis(tensor.numpy(), axis, 0)
        result = np.zeros((length, *source.shape[1:]), source.dtype)
        at = 0
        for start, stop in ranges:
            found = source[min(start, end) : min(stop, end)]
            result[at : at + len(found)] = found
            at += stop - start
        return np.ascontiguousarray(np.moveaxis(result, 0, axis))

    return lazy(load, tensor.dtype, shape, [tensor])


def zeros(shape: Sequence[int]) -> ir.LazyTensor:
    """A float32 tensor of zeros."""
    return lazy(lambda: np.zeros(shape, np.float32), ir.DataType.FLOAT, shape)


def add_initializer(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """Register ``tensor`` under ``name``, which has to be unused."""
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(extents(tensor)), const_value=tensor)
    graph.register_initializer(value)
    return value


def stored_bits(model: ir.Model) -> int:
    """Bits of all weights of a network."""
    tensors = (value.const_value for value in model.graph.initializers.values())
    return sum(bits_of(tensor) for tensor in tensors if isinstance(tensor, ir.LazyTensor | ir.ExternalTensor))


def bits_of(tensor: ir.TensorProtocol) -> int:
    """Bits of a weight."""
    return int(tensor.size * tensor.dtype.itemsize * 8)
