"""How kernels read weights: their elements, and the scales and offsets of their blocks (cuda/weight_form.cuh)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from trtllm_lite.common.vocabulary import DTYPES

from ..launch import WeightBuffers

BLOCK_SIZES = (32, 64, 128, 256, 512)  # elements of a block that kernels support
PAIRS8, PAIRS32 = "pairs8", "pairs32"  # layouts of 4-bit integers
_NUMBER_TYPES = {"float32": 0, "float16": 1, "bfloat16": 2}  # TL_NUMBER_TYPE


@dataclass(frozen=True)
class BlockNumbers:
    """Scales, and perhaps offsets, of the blocks of a weight's rows, in the layout rows8.

    Blocks of ``size`` neighbours of a row have a scale of ``dtype`` each, and an offset if ``offsets``.
    """

    size: int
    dtype: str
    offsets: bool

    def __str__(self) -> str:
        """The scales and offsets in words, which identify weights in timings of products."""
        return f"blocks of {self.size} with {self.dtype} scales" + " and offsets" * self.offsets

    @property
    def bytes_per_block(self) -> int:
        """Bytes of the scale and offset of one block."""
        return DTYPES[self.dtype].bits // 8 * (1 + self.offsets)

    @property
    def defines(self) -> dict[str, int]:
        """The macros of kernels that read the scales and offsets."""
        return {
            "TL_BLOCK": self.size,
            "TL_NUMBER_TYPE": _NUMBER_TYPES[self.dtype],
            "TL_OFFSETS": int(self.offsets),
        }


@dataclass(frozen=True)
class WeightForm:
    """What a kernel of TL_WEIGHT_FORM ``number`` multiplies: bits per element of the weight, bytes per element of x.

    ``depth``: in_features must be a multiple of it. ``layout``: the weight's layout. ``in_blocks``: whether rows have
    blocks with scales, which ``blocks`` describes. ``whole_rows``: whether a few rows of x are multiplied as
    fixed-point numbers (cuda/fixed_rows.cuh). ``largest_scale``: the largest scale of a block; tiled kernels multiply
    it by a power of two (cuda/small_floats.cuh).
    """

    number: int
    weight_bits: int
    x_bytes: int
    depth: int
    layout: str = "row_major"
    in_blocks: bool = False
    whole_rows: bool = False
    largest_scale: float = inf
    blocks: BlockNumbers | None = None

    def weight_bytes(self, elements: int) -> int:
        """Bytes of ``elements`` neighbouring elements of a row."""
        return elements * self.weight_bits // 8

    def number_bytes(self, elements: int) -> int:
        """Bytes of the scales and offsets of ``elements`` neighbouring elements, which must be whole blocks."""
        return 0 if self.blocks is None else elements // self.blocks.size * self.blocks.bytes_per_block

    def adds_exactly(self, in_features: int) -> bool:
        """Whether sums are whole numbers that int32 holds, so that every order of additions gives the same sum."""
        return self.number == _INT8_BOTH and in_features <= _LARGEST_EXACT_DEPTH

    @property
    def is_dequantized_in_blocks(self) -> bool:
        """Whether elements are in blocks and are dequantized to 16 bits for steps of any size."""
        return self.in_blocks and not self.whole_rows

    @property
    def takes_long(self) -> bool:
        """Whether multiplying a few rows takes longer than copying: E2M1 takes the most instructions for its bytes."""
        return self.is_dequantized_in_blocks and self.weight_bits == 4

    @property
    def is_dequantized(self) -> bool:
        """Whether tiled kernels dequantize the weight to x's type before they multiply."""
        return self.weight_bits < 8 * self.x_bytes

    @property
    def defines(self) -> dict[str, int]:
        """The macros that describe the format."""
        in_pairs32 = {"TL_PAIRS32": 1} if self.layout == PAIRS32 else {}
        return {"TL_WEIGHT_FORM": self.number} | in_pairs32 | ({} if self.blocks is None else self.blocks.defines)

    @property
    def ordered(self) -> WeightForm:
        """This form in engines that add in one order: 4-bit integers are in the order of the tensor cores.

        Kernels that multiply them by fixed-point numbers do not read that layout.
        """
        return replace(self, layout=PAIRS32) if self.whole_rows else self


_PLAIN = WeightForm(0, 16, 2, 16)
_INT8_BOTH = 5
_LARGEST_EXACT_DEPTH = (2**31 - 1) // 128**2  # of sums of products of int8
# Formats of rows with one scale, by (type of the weight, type of the rows of x if these are bytes).
_FORMS = {
    ("int8", None): WeightForm(1, 8, 2, 32, "mma_k16"),
    ("float8_e4m3fn", "float8_e4m3fn"): WeightForm(2, 8, 1, 32),
    ("int8", "int8"): WeightForm(_INT8_BOTH, 8, 1, 32),
}
# Formats of rows with scales for each block, which are multiplied by 16-bit rows.
BLOCK_FORMS = {
    "int4": WeightForm(3, 4, 2, 64, PAIRS8, in_blocks=True, whole_rows=True),
    "uint4": WeightForm(4, 4, 2, 64, PAIRS8, in_blocks=True, whole_rows=True),
    "float8_e4m3fn": WeightForm(6, 8, 2, 32, "spread_e4m3", in_blocks=True, largest_scale=128.0),
    "float4_e2m1fn": WeightForm(7, 4, 2, 64, "spread_e2m1", in_blocks=True, largest_scale=2.0),
    "int8": WeightForm(8, 8, 2, 32, "mma_k16", in_blocks=True),
}
# Types of weights that are multiplied by rows of bytes of the same type.
BYTE_PRODUCTS = tuple(dtype for dtype, rows in _FORMS if rows is not None)


def weight_form(dtype: str, rows: str | None = None, blocks: BlockNumbers | None = None) -> WeightForm:
    """How kernels read weights of ``dtype`` that are multiplied with 16-bit rows, or with bytes of type ``rows``."""
    if blocks is not None:
        return replace(BLOCK_FORMS[dtype], blocks=blocks)
    return _FORMS.get((dtype, rows), _PLAIN)


def has_blocks(dtype: str, rows: str | None, count: int) -> bool:
    """Whether kernels read weights of ``dtype``, whose rows have ``count`` scales, in blocks."""
    return rows is None and dtype in BLOCK_FORMS and (count > 1 or (dtype, None) not in _FORMS)


def form_of(weight: WeightBuffers) -> WeightForm:
    """How kernels read ``weight``."""
    values, scale, blocks = weight.values, weight.scale, None
    if scale is not None and scale.layout == "rows8":
        depth, count = values.shape[-1], scale.shape[-1]
        assert isinstance(depth, int)
        assert isinstance(count, int)
        blocks = BlockNumbers(depth // count, scale.dtype, weight.offset is not None)
    form = weight_form(values.dtype, weight.rows, blocks)
    return form.ordered if values.layout == PAIRS32 else form
