"""Random quantized weights in the kernels' layout, and their dequantized values."""

from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import torch

from trtllm_lite.plugins.cuda.weight_form import BLOCK_FORMS
from trtllm_lite.plugins.launch import Buffer, WeightBuffers
from trtllm_lite.plugins.packing import pack

_RANGES = {"int8": (-127, 127), "int4": (-8, 7), "uint4": (0, 15)}
_FLOATS = {"float8_e4m3fn": (448.0, 8), "float4_e2m1fn": (6.0, 4)}  # largest number, and bits
_NUMPY = {
    "int8": np.int8,
    "int4": ml_dtypes.int4,
    "uint4": ml_dtypes.uint4,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float4_e2m1fn": ml_dtypes.float4_e2m1fn,
}
_NUMBERS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Form:
    """The stored form of a weight: a 16-bit type without scales, or elements of 8 or 4 bits with scales.

    Scales have the type ``number``. There is one for each ``block`` of neighbouring elements of a row, or one for each
    row if ``block`` is 0. With ``offsets`` each block also has an offset; with ``zero_points``, the offset is minus the
    scale times an integer, as in AWQ and GPTQ. With ``ordered`` the layout is that of engines which add in one order.
    """

    dtype: str
    block: int = 0
    number: str = "float32"
    offsets: bool = False
    zero_points: bool = False
    ordered: bool = False


@dataclass(frozen=True)
class RandomWeight:
    """The ``tensors`` of ``buffers``, and their dequantized elements: float64 [..., out, in]."""

    buffers: WeightBuffers
    tensors: Mapping[Buffer, torch.Tensor]
    meant: torch.Tensor


def random_weight(form: Form, *shape: int, device: str) -> RandomWeight:
    """A weight with elements of every magnitude; dequantized elements are about 1 / sqrt(in)."""
    if form.dtype in ("bfloat16", "float16"):
        matrix = (torch.randn(shape) * shape[-1] ** -0.5).to(_NUMBERS[form.dtype]).to(device)
        buffer = Buffer("weight", form.dtype, shape)
        return RandomWeight(WeightBuffers(buffer), {buffer: matrix}, matrix.double())
    values, low, high = _random_values(form, shape)
    blocks = (*shape[:-1], shape[-1] // (form.block or shape[-1]))
    scale = ((0.5 + torch.rand(blocks)) / (high - low) * 3 / shape[-1] ** 0.5).to(_NUMBERS[form.number])
    points = torch.rand(blocks) * (high - low) + low
    points = points.round() if form.zero_points else points
    offset = (-points * scale.float()).to(_NUMBERS[form.number]) if form.offsets else None
    kernels = BLOCK_FORMS[form.dtype]
    layout = (kernels.ordered if form.ordered else kernels).layout
    packed = pack(values.numpy().astype(_NUMPY[form.dtype]), layout)
    stored = torch.from_numpy(packed.view(np.uint8))
    buffers, tensors = [Buffer("weight", form.dtype, shape, layout=layout)], [stored]
    for name, numbers in (("weight_scale", scale), ("weight_offset", offset)):
        if numbers is None:
            continue
        layout = "rows8" if form.block else "row_major"
        buffers.append(Buffer(name, form.number, blocks if form.block else shape[:-1], layout=layout))
        tensors.append(_rows8(numbers) if form.block else numbers.squeeze(-1))
    wide = values.double().reshape(*blocks, -1) * scale.double()[..., None]
    meant = (wide if offset is None else wide + offset.double()[..., None]).reshape(shape)
    placed = dict(zip(buffers, (tensor.contiguous().to(device) for tensor in tensors), strict=True))
    return RandomWeight(WeightBuffers(*buffers), placed, meant.to(device))


def _random_values(form: Form, shape: tuple[int, ...]) -> tuple[torch.Tensor, float, float]:
    """Random elements of a form, and the bounds of its type; floats have random codes, with 0 in place of NaN."""
    if form.dtype not in _FLOATS:
        low, high = _RANGES[form.dtype]
        return torch.randint(low, high + 1, shape, dtype=torch.int32), low, high
    largest, bits = _FLOATS[form.dtype]
    codes = torch.randint(0, 1 << bits, shape, dtype=torch.uint8)
    values = torch.from_numpy(codes.numpy().view(_NUMPY[form.dtype]).astype(np.float32)).nan_to_num(nan=0.0)
    return values, -largest, largest


def _rows8(numbers: torch.Tensor) -> torch.Tensor:
    *parts, rows, blocks = numbers.shape
    return numbers.reshape(*parts, rows // 8, 8, blocks).transpose(-1, -2)
