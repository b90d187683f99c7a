"""Reads the blocks of GGUF's quantized tensors as elements, scales and offsets: nothing is rounded.

https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h lays out a block of each type. Elements of five and six
bits become bytes here. k-quants (``_K``) multiply small integers by float16 numbers to get scales; these
products need more bits than float16 has, and are float32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtllm_lite.errors import ConvertError
from trtllm_lite.network.blocks import Blocks
from trtllm_lite.network.dtypes import NUMPY

# Arrays [..., count] of elements, of scales, and optionally of offsets, of the blocks of a row.
_Parts = tuple[NDArray, NDArray, NDArray | None]
NO_POWER = 255  # the exponent of MXFP4 that stands for NaN
_SUPER = 256  # elements of a super-block of a k-quant


@dataclass(frozen=True)
class Kind:
    """A type of tensors: ``blocks`` is its form after conversion; ``read`` takes blocks of ``num_bytes`` uint8."""

    blocks: Blocks
    num_bytes: int
    read: Callable[[NDArray], _Parts]

    def parts(self, rows: NDArray) -> dict[str, NDArray]:
        """The parts of a tensor whose ``rows`` are bytes [rows, bytes]: [rows, elements] and [rows, blocks]."""
        stored = rows.reshape(len(rows), -1, self.num_bytes)
        found = zip(("weight", "weight_scale", "weight_offset"), self.read(stored), strict=True)
        return {
            name: array.reshape(len(rows), -1).astype(NUMPY[self.blocks.dtype_of(name)], copy=False)
            for name, array in found
            if array is not None
        }


def kind_of(tensor: Any) -> Kind | None:
    """The kind of the reader's matrix ``tensor``; None if it is not kept in blocks."""
    return _KINDS.get(tensor.tensor_type.name) if len(tensor.shape) == 2 else None


def _half(block: NDArray, start: int) -> NDArray:
    """The float16 number at byte ``start`` of each block, [..., 1]."""
    return np.ascontiguousarray(block[..., start : start + 2]).view(np.float16)


def _nibbles(packed: NDArray) -> NDArray:
    """The low halves of all bytes, then the high halves."""
    return np.concatenate([packed & 15, packed >> 4], -1)


def _fifth_bits(packed: NDArray) -> NDArray:
    """Return 32 elements: 16 for each set bit of the 32 bits, else 0."""
    return np.unpackbits(packed, axis=-1, bitorder="little") << 4


def _q4_0(block: NDArray) -> _Parts:
    return _nibbles(block[..., 2:]).view(np.int8) - 8, _half(block, 0), None


def _q4_1(block: NDArray) -> _Parts:
    return _nibbles(block[..., 4:]), _half(block, 0), _half(block, 2)


def _q5_0(block: NDArray) -> _Parts:
    return (_nibbles(block[..., 6:]) | _fifth_bits(block[..., 2:6])).view(np.int8) - 16, _half(block, 0), None


def _q5_1(block: NDArray) -> _Parts:
    return _nibbles(block[..., 8:]) | _fifth_bits(block[..., 4:8]), _half(block, 0), _half(block, 2)


def _mxfp4(block: NDArray) -> _Parts:
    """MXFP4: the scale is a power of two (exponent + 127), the elements are E2M1."""
    exponents = block[..., :1]
    if (exponents == NO_POWER).any():
        raise ConvertError("a scale of a block of MXFP4 is not a number: download the file again")
    scales = np.ldexp(np.float32(1), exponents.astype(np.int32) - 127)
    return _nibbles(block[..., 1:]).view(NUMPY["float4_e2m1fn"]), scales, None


def _q8_0(block: NDArray) -> _Parts:
    return np.ascontiguousarray(block[..., 2:]).view(np.int8), _half(block, 0), None


def _scales_and_mins(block: NDArray) -> tuple[NDArray, NDArray]:
    """The scales and minimums of the 8 blocks of a super-block: eight of each, in 6 bits, in 12 bytes from byte 4."""
    low, mid, high = block[..., 4:8], block[..., 8:12], block[..., 12:16]
    scales = np.concatenate([low & 63, high & 15 | low >> 6 << 4], -1)
    mins = np.concatenate([mid & 63, high >> 4 | mid >> 6 << 4], -1)
    scale, least = _half(block, 0).astype(np.float32), _half(block, 2).astype(np.float32)
    return scale * scales, -(least * mins)


def _pairs_of_blocks(packed: NDArray) -> NDArray:
    """Nibbles of 128 bytes: each 32 bytes hold one block in the low halves and the next in the high halves."""
    runs = packed.reshape(*packed.shape[:-1], 4, 32)
    return _nibbles(runs).reshape(*packed.shape[:-1], _SUPER)


def _q4_k(block: NDArray) -> _Parts:
    return _pairs_of_blocks(block[..., 16:]), *_scales_and_mins(block)


def _q5_k(block: NDArray) -> _Parts:
    """Q5_K: bit b of the 32 bytes of fifth bits belongs to block b."""
    bits = block[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    fifth = (bits << 4).reshape(*block.shape[:-1], _SUPER)
    return _pairs_of_blocks(block[..., 48:]) | fifth, *_scales_and_mins(block)


def _q6_k(block: NDArray) -> _Parts:
    """Q6_K: two halves of 128 elements; each has 64 bytes of low nibbles and 32 bytes of 2-bit high parts."""
    low = block[..., :128].reshape(*block.shape[:-1], 2, 64)
    high = block[..., 128:192].reshape(*block.shape[:-1], 2, 1, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    runs = _nibbles(low).reshape(*block.shape[:-1], 2, 4, 32) | (high >> shifts & 3) << 4
    scales = np.ascontiguousarray(block[..., 192:208]).view(np.int8)
    elements = runs.reshape(*block.shape[:-1], _SUPER).view(np.int8) - 32
    return elements, _half(block, 208).astype(np.float32) * scales, None


_KINDS = {
    "Q4_0": Kind(Blocks("int4", 32, "float16"), 18, _q4_0),
    "Q4_1": Kind(Blocks("uint4", 32, "float16", "float16"), 20, _q4_1),
    "Q5_0": Kind(Blocks("int8", 32, "float16"), 22, _q5_0),
    "Q5_1": Kind(Blocks("int8", 32, "float16", "float16"), 24, _q5_1),
    "Q8_0": Kind(Blocks("int8", 32, "float16"), 34, _q8_0),
    "Q4_K": Kind(Blocks("uint4", 32, "float32", "float32"), 144, _q4_k),
    "Q5_K": Kind(Blocks("int8", 32, "float32", "float32"), 176, _q5_k),
    "MXFP4": Kind(Blocks("float4_e2m1fn", 32, "bfloat16"), 17, _mxfp4),
    "Q6_K": Kind(Blocks("int8", 16, "float32"), 210, _q6_k),
}
