"""Tensors that are computed when they are asked for, and the operations on them.

Each evaluation reads its sources again and nothing is cached, so that a build holds one weight at a time.
"""

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir


def lazy(load: Callable[[], np.ndarray], dtype: ir.DataType, shape: Sequence[int]) -> ir.LazyTensor:
    """What ``load`` returns, an array of that type and shape."""
    return ir.LazyTensor(lambda: ir.Tensor(load(), dtype=dtype), dtype=dtype, shape=ir.Shape(shape))


def extents(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    """The shape of a tensor in integers; tensors, unlike values, have no symbols."""
    return tuple(dim for dim in tensor.shape if isinstance(dim, int))


def concatenate(tensors: Sequence[ir.TensorProtocol]) -> ir.LazyTensor:
    """``tensors`` of one dtype joined along their first axis."""
    first = extents(tensors[0])
    rows = sum(extents(tensor)[0] for tensor in tensors)
    return lazy(lambda: np.concatenate([tensor.numpy() for tensor in tensors]), tensors[0].dtype, (rows, *first[1:]))


def stack(tensors: Sequence[ir.TensorProtocol]) -> ir.LazyTensor:
    """``tensors`` of one dtype and shape along a new first axis."""
    shape = (len(tensors), *extents(tensors[0]))
    return lazy(lambda: np.stack([tensor.numpy() for tensor in tensors]), tensors[0].dtype, shape)


def zeros(size: int) -> ir.LazyTensor:
    """A float32 vector of zeros."""
    return lazy(lambda: np.zeros(size, np.float32), ir.DataType.FLOAT, (size,))


def add_initializer(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """Register ``tensor`` under ``name``, which must be free."""
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(extents(tensor)), const_value=tensor)
    graph.register_initializer(value)
    return value
