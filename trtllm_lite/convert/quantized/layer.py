"""A linear layer of a quantized source: its tensors as stored, and the matrix that they stand for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.common.vocabulary import PLAIN_DTYPES
from trtllm_lite.convert.sources.safetensors_file import TensorInfo
from trtllm_lite.errors import ConvertError, shown
from trtllm_lite.network.blocks import Blocks, Rounding, rows_and_depth

_UNLIKE = "the checkpoint does not store what its quantization_config says"


@dataclass(frozen=True)
class Layer:
    """A layer's ``tensors`` by the rest of their name, such as ``weight_scale``; ``load`` reads one of them."""

    name: str
    tensors: Mapping[str, TensorInfo]
    load: Callable[[str], NDArray]

    def error(self, text: str) -> ConvertError:
        """The error with a description of the defect of the layer."""
        return ConvertError(f"{self.name}: {text}")

    def find(self, tensor: str, dtypes: tuple[str, ...], rank: int) -> TensorInfo:
        """Return a tensor of one of the ``dtypes``. Raises ConvertError if it is missing or of another type."""
        info = self.tensors.get(tensor)
        if info is None:
            raise self.error(f"expected a tensor {tensor} beside {', '.join(sorted(self.tensors))}: {_UNLIKE}")
        if info.dtype not in dtypes or len(info.shape) != rank or 0 in info.shape:
            raise self.error(
                f"expected {tensor} to be of {' or '.join(dtypes)} with {rank} dimensions above 0, found {info.dtype} "
                f"{list(info.shape)}: {_UNLIKE}"
            )
        return info

    def expect(self, tensor: str, shape: tuple[int, ...], dtype: str | None = None) -> TensorInfo:
        """Return a tensor of that shape, and of ``dtype`` if it is given. Raises ConvertError."""
        info = self.tensors.get(tensor)
        if info is None or info.shape != shape:
            found = "none" if info is None else list(info.shape)
            raise self.error(f"expected {tensor} to have the shape {list(shape)}, found {found}: {_UNLIKE}")
        if dtype not in (None, info.dtype):
            raise self.error(f"expected {tensor} to be of {dtype}, found {info.dtype}: {_UNLIKE}")
        return info

    def expect_shape(self, tensor: str, *shapes: tuple[int, ...], dtypes: tuple[str, ...] = PLAIN_DTYPES) -> TensorInfo:
        """Return a floating-point tensor of one of the ``shapes``. Raises ConvertError."""
        info = self.tensors.get(tensor)
        if info is None or info.shape not in shapes or info.dtype not in dtypes:
            found = "none" if info is None else f"{info.dtype} {list(info.shape)}"
            listed = " or ".join(str(list(shape)) for shape in shapes)
            raise self.error(f"expected {tensor} to be floating-point numbers {listed}, found {found}: {_UNLIKE}")
        return info

    def number(self, tensor: str) -> float:
        """Return the only element of a tensor, a positive float32. Raises ConvertError."""
        self.expect_shape(tensor, (), (1,))
        value = float(self.load(tensor).reshape(()).astype(np.float32))
        if not 0 < value < np.inf:
            raise self.error(f"expected {tensor} to be a positive number, found {shown(value)}: quantize it again")
        return value


@dataclass(frozen=True)
class Matrix:
    """The matrix [out, in] that a layer's tensors stand for, in ``blocks``; each of its ``parts`` is made when read.

    It may also be several matrices [matrices, in, out], whose parts are those of their transposes
    (:func:`rows_and_depth`). ``stored`` are the tensors that it is made from.
    """

    shape: tuple[int, ...]
    blocks: Blocks
    parts: Mapping[str, Callable[[], NDArray]]
    stored: tuple[str, ...]

    def expanded(self) -> NDArray[np.float32]:
        """The dequantized matrix, in the original order of columns and with the inputs' factors multiplied in.

        Each element is rounded once, and once more if there are factors.
        """
        rows, depth = rows_and_depth(self.shape)
        scale = self.parts["weight_scale"]().astype(np.float32).reshape(rows, -1, 1)
        elements = self.parts["weight"]().astype(np.float32).reshape(*scale.shape[:2], -1)
        if self.blocks.zero_points:
            elements -= self.parts["weight_zero_point"]().astype(np.float32).reshape(scale.shape)
        matrix = (elements * scale).reshape(rows, depth)
        if self.blocks.order:
            in_blocks, matrix = matrix, np.empty_like(matrix)
            matrix[:, self.parts["input_order"]()] = in_blocks
        if self.blocks.factors:
            matrix = matrix * self.parts["input_factor"]()
        return matrix if len(self.shape) == 2 else matrix.reshape(self.shape[0], -1, depth).swapaxes(1, 2)

    def with_groups(self, layer: Layer, tensor: str, count: int) -> "Matrix":
        """Return the matrix whose columns have the ``count`` groups listed in ``tensor`` [in], if the layer has one.

        The columns of a group may lie apart (act-order). Then they are reordered by group, and activations are
        reordered alike. Raises ConvertError unless all groups have the same number of columns.
        """
        if tensor not in layer.tensors:
            return self
        layer.find(tensor, ("int32",), 1)
        layer.expect(tensor, self.shape[1:])
        group = layer.load(tensor)
        order = np.argsort(group, kind="stable").astype(np.int32)
        if not np.array_equal(group[order], np.arange(len(group)) // (len(group) // count)):
            raise layer.error(f"expected {tensor} to give each of {count} groups the same number of columns: {_UNLIKE}")
        if np.array_equal(order, np.arange(len(order))):
            return replace(self, stored=(*self.stored, tensor))
        blocks = replace(self.blocks, order=sha256(order.tobytes()).hexdigest())
        columns = {"weight": lambda: self.parts["weight"]()[:, order], "input_order": lambda: order}
        return Matrix(self.shape, blocks, {**self.parts, **columns}, (*self.stored, tensor))

    def with_factors(self, layer: Layer, tensor: str) -> "Matrix":
        """Return the matrix for activations that are multiplied by ``tensor`` [in] first, if the layer has one."""
        if tensor not in layer.tensors:
            return self
        layer.expect_shape(tensor, self.shape[1:])
        factors = layer.load(tensor).astype(np.float32)
        blocks = replace(self.blocks, factors=sha256(factors.tobytes()).hexdigest())
        parts = {**self.parts, "input_factor": lambda: layer.load(tensor).astype(np.float32)}
        return Matrix(self.shape, blocks, parts, (*self.stored, tensor))


@dataclass(frozen=True)
class ExpandedMatrix:
    """A matrix [out, in] that its layer stores in a form which is kept nowhere: ``expand`` gives its elements.

    ``stored`` are the tensors that it is made from.
    """

    shape: tuple[int, ...]
    expand: Callable[[], NDArray[np.float32]]
    stored: tuple[str, ...]

    def expanded(self) -> NDArray[np.float32]:
        """The elements, each rounded to float32 once."""
        return self.expand()


def static_rounding(layer: Layer, to: str) -> Rounding:
    """Return the rounding of activations to ``to`` with the single scale that the source gives."""
    return Rounding(to, layer.number("input_scale"))
