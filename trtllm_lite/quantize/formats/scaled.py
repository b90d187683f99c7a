"""Elements of a few bits with a scale, perhaps an offset, for each block of a row: w = scale * element + offset."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from trtllm_lite.network.dtypes import NUMPY, ONNX
from trtllm_lite.network.tensors import computed, extents
from trtllm_lite.plugins.scaled_weight import scaled
from trtllm_lite.quantize.formats.dequantization import dequantized, recognise_dequantized
from trtllm_lite.quantize.formats.format import QuantizedFormat, StoredMatrix
from trtllm_lite.quantize.threads import Parts


@dataclass(frozen=True)
class Scaled(QuantizedFormat):
    """weight [..., out, in] of one of ``weight_dtypes``, weight_scale and maybe weight_offset [..., out, blocks].

    Scales and offsets are of a plain type. Float matrices are stored in blocks of ``block_size`` elements of a row (0:
    a row is one block) with scales of ``scale_dtype`` and without offsets; ``largest`` is a block's largest element.
    Blocks are a multiple of ``granule`` elements, which kernels read at once.
    """

    operands = ("weight", "weight_scale", "weight_offset")
    largest: ClassVar[float]
    scale_dtype: ClassVar[str] = "float32"
    granule: ClassVar[int] = 1

    block_size: int = 0

    @abstractmethod
    def rounded(self, scaled: np.ndarray) -> np.ndarray:
        """float32 elements of at most ``largest``, rounded to the first type of ``weight_dtypes``."""

    def recognise(self, value: ir.Value | None) -> StoredMatrix | None:
        """As :meth:`Format.recognise`: what :mod:`dequantization` recognises, if the weight has one of our types."""
        operands = recognise_dequantized(value)
        if operands is None or operands["weight"].dtype not in self.weight_dtypes:
            return None
        found = StoredMatrix(self, operands)
        block = found.shape[-1] // extents(found.tensor("weight_scale"))[-1]
        return found if block % self.granule == 0 else None

    def pack(self, matrix: np.ndarray) -> dict[str, np.ndarray]:
        """As :meth:`QuantizedFormat.pack`. The scale of a block of zeros is 1."""
        blocks = matrix.astype(np.float32).reshape(*matrix.shape[:-1], -1, self.block_size or matrix.shape[-1])
        scale = (np.abs(blocks).max(-1) / np.float32(self.largest)).astype(NUMPY[self.scale_dtype])
        scale = np.where(scale > 0, scale, scale.dtype.type(1))
        elements = np.clip(blocks / scale.astype(np.float32)[..., None], -self.largest, self.largest)
        return {"weight": self.rounded(elements).reshape(matrix.shape), "weight_scale": scale}

    def quantized(self, tensor: ir.TensorProtocol) -> dict[str, ir.TensorProtocol]:
        """As :meth:`QuantizedFormat.quantized`."""
        *rows, depth = extents(tensor)

        packed = Parts(lambda: self.pack(tensor.numpy()))

        blocks = (*rows, depth // (self.block_size or depth))
        return {
            "weight": computed(lambda: packed.take("weight"), self.weight_dtypes[0], (*rows, depth)),
            "weight_scale": computed(lambda: packed.take("weight_scale"), ONNX[self.scale_dtype], blocks),
        }

    def express(
        self, graph: ir.Graph, before: ir.Node, name: str, tensors: Mapping[str, ir.TensorProtocol]
    ) -> ir.Value:
        """As :meth:`QuantizedFormat.express`."""
        return dequantized(graph, before, name, tensors)

    def dequantize(self, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
        """As :meth:`Format.dequantize`; each element is rounded once to float32."""
        wide = scaled(tensors["weight"], tensors["weight_scale"], tensors.get("weight_offset"))
        return wide.astype(np.float32)
