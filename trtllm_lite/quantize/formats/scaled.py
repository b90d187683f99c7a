"""Stores elements of a few bits with a scale, perhaps an offset, per block of a row: w = scale * element + offset."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from trtllm_lite.network.dtypes import NUMPY, ONNX
from trtllm_lite.network.tensors import computed, extents
from trtllm_lite.plugins.scaled_weight import scaled
from trtllm_lite.quantize.formats.dequantization import dequantized, recognise_dequantized
from trtllm_lite.quantize.formats.format import QuantizedFormat, Rows, StoredMatrix
from trtllm_lite.quantize.threads import Parts

_ELEMENTS_AT_ONCE = 1 << 18  # a float32 copy of that many elements stays in the CPU's caches


@dataclass(frozen=True)
class Scaled(QuantizedFormat):
    """weight [..., out, in] of one of ``weight_dtypes``, weight_scale and maybe weight_offset [..., out, blocks].

    Scales and offsets are of a plain type. Float matrices are stored in blocks of ``block_size`` elements of a row (0:
    a row is one block) with scales of ``scale_dtype`` and without offsets; the largest magnitude of a block becomes
    ``largest``. Blocks are a multiple of ``granule`` elements, which kernels read at once.
    """

    operands = ("weight", "weight_scale", "weight_offset")
    largest: ClassVar[float]
    scale_dtype: ClassVar[str] = "float32"
    granule: ClassVar[int] = 1

    block_size: int = 0

    def write(self, elements: np.ndarray, to: np.ndarray) -> None:
        """Write float32 ``elements`` of at most ``largest`` to ``to``, rounded to the nearest, halves to even."""
        to[...] = elements  # ml_dtypes rounds to nearest even

    def recognise(self, value: ir.Value | None) -> StoredMatrix | None:
        """Implements :meth:`Format.recognise` for weights of ``weight_dtypes`` in blocks of whole granules."""
        operands = recognise_dequantized(value)
        if operands is None or operands["weight"].dtype not in self.weight_dtypes:
            return None
        found = StoredMatrix(self, operands)
        block = found.shape[-1] // extents(found.tensor("weight_scale"))[-1]
        return found if block % self.granule == 0 else None

    def pack(self, matrix: Rows) -> dict[str, np.ndarray]:
        """Implements :meth:`QuantizedFormat.pack`. The scale of a block of zeros is 1."""
        depth = matrix[:1].shape[1]
        block = self.block_size or depth
        weight = np.empty((len(matrix), depth), self.weight_dtypes[0].numpy())
        scale = np.empty((len(matrix), depth // block), NUMPY[self.scale_dtype])
        at_once = max(1, _ELEMENTS_AT_ONCE // depth)
        for first in range(0, len(matrix), at_once):
            some = slice(first, first + at_once)
            blocks = matrix[some].astype(np.float32).reshape(-1, depth // block, block)
            self._pack_rows(blocks, weight[some], scale[some])
        return {"weight": weight, "weight_scale": scale}

    def _pack_rows(self, blocks: np.ndarray, weight: np.ndarray, scale: np.ndarray) -> None:
        """Write the elements and scales of float32 ``blocks`` [rows, blocks, block_size], which are overwritten."""
        scale[...] = np.abs(blocks).max(-1) / np.float32(self.largest)
        scale[~(scale > 0)] = 1
        blocks /= scale.astype(np.float32)[..., None]
        np.clip(blocks, -self.largest, self.largest, out=blocks)
        self.write(blocks.reshape(weight.shape), weight)

    def quantized(self, shape: Sequence[int], matrix: Callable[[], Rows]) -> dict[str, ir.TensorProtocol]:
        """Implements :meth:`QuantizedFormat.quantized`."""
        rows, depth = shape
        packed = Parts(lambda: self.pack(matrix()))
        blocks = (rows, depth // (self.block_size or depth))
        return {
            "weight": computed(lambda: packed.take("weight"), self.weight_dtypes[0], shape),
            "weight_scale": computed(lambda: packed.take("weight_scale"), ONNX[self.scale_dtype], blocks),
        }

    def express(
        self, graph: ir.Graph, before: ir.Node, name: str, tensors: Mapping[str, ir.TensorProtocol]
    ) -> ir.Value:
        """Implements :meth:`QuantizedFormat.express`."""
        return dequantized(graph, before, name, tensors)

    def dequantize(self, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
        """Implements :meth:`Format.dequantize`; each element is rounded once to float32."""
        wide = scaled(tensors["weight"], tensors["weight_scale"], tensors.get("weight_offset"))
        return wide.astype(np.float32)
