"""The 8-bit types to which rows of activations are quantized, and their scales."""

from __future__ import annotations

from dataclasses import dataclass

from ..launch import Buffer

E4M3 = "float8_e4m3fn"
ROW_TYPES = {E4M3: 1, "int8": 2}  # values of RowType (cuda/byte_rows.cuh); 0 is 16 bits


@dataclass(frozen=True)
class RowScales:
    """The scales of rows of ``dtype``: ``value`` for all rows, or with ``per_row`` one for each row.

    The scale of a row follows from its maximum and is at least ``value``; ``buffer`` float32 [rows] holds these scales
    once they are computed.
    """

    dtype: str
    value: float
    per_row: bool = False
    buffer: Buffer | None = None


def row_type(scales: RowScales | None) -> int:
    """The RowType, for macros, of rows with ``scales``."""
    return 0 if scales is None else ROW_TYPES[scales.dtype]
