"""MXFP4 mixtures of experts (``quant_method: mxfp4``), as in gpt-oss: arXiv 2508.10925, section 2.1.

For each projection of all experts, [experts, in, out] in Hugging Face's terms, there are ``…_blocks`` uint8 [experts,
out, in / 32, 16], two elements to a byte, the first in the low bits, and ``…_scales`` uint8 [experts, out, in / 32].
"""

from collections.abc import Iterable

from numpy.typing import NDArray

from trtllm_lite.convert.fields.config import ConfigFields
from trtllm_lite.convert.quantized.fp4 import FP4
from trtllm_lite.convert.quantized.layer import Layer, Matrix
from trtllm_lite.convert.quantized.method import Method
from trtllm_lite.convert.quantized.powers import SCALE_DTYPE, powers_of_two
from trtllm_lite.convert.quantized.words import in_pairs
from trtllm_lite.network.blocks import Blocks
from trtllm_lite.network.dtypes import NUMPY
from trtllm_lite.network.weight_expression import SourceTensor

_BLOCKS, _SCALES = "_blocks", "_scales"
_BLOCK_BYTES = 16
_EXPERT_DIMS = 3  # [experts, in, out]


class Mxfp4(Method):
    """Tensors with blocks are quantized; the settings only repeat which layers have none."""

    description = "mxfp4, weights only"

    def __init__(self, fields: ConfigFields) -> None:
        """Take the settings."""
        for key in ("modules_to_not_convert", "dequantize"):
            fields.take(key)

    def matrices(self, layer: Layer) -> dict[str, Matrix]:
        """Implements :meth:`Method.matrices`."""
        names = [tensor.removesuffix(_BLOCKS) for tensor in layer.tensors if tensor.endswith(_BLOCKS)]
        return {name: _matrix(layer, name) for name in names}


def mxfp4_blocks(sources: Iterable[SourceTensor]) -> dict[str, Blocks]:
    """The matrices of experts among a model's tensors; an MXFP4 source has all of them in blocks."""
    return {source.name: _blocks(2 * _BLOCK_BYTES) for source in sources if len(source.shape) == _EXPERT_DIMS}


def _blocks(size: int) -> Blocks:
    return Blocks(FP4, size, SCALE_DTYPE)


def _matrix(layer: Layer, name: str) -> Matrix:
    blocks, scales = f"{name}{_BLOCKS}", f"{name}{_SCALES}"
    experts, rows, groups, half = layer.find(blocks, ("uint8",), 4).shape
    if half != _BLOCK_BYTES:
        raise layer.error(
            f"expected {_BLOCK_BYTES} bytes in each block of {blocks}, found {half}, which is not supported"
        )
    layer.expect(scales, (experts, rows, groups), "uint8")

    def elements() -> NDArray:
        return in_pairs(layer.load(blocks).reshape(experts * rows, groups * half), axis=-1).view(NUMPY[FP4])

    def powers() -> NDArray:
        return powers_of_two(layer, scales).reshape(-1, groups)

    shape, parts = (experts, groups * 2 * half, rows), {"weight": elements, "weight_scale": powers}
    return Matrix(shape, _blocks(2 * half), parts, (blocks, scales))
