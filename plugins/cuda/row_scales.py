"""The scales under which rows of activations are E4M3."""

from __future__ import annotations

from dataclasses import dataclass

from ..launch import Buffer

E4M3 = "float8_e4m3fn"


@dataclass(frozen=True)
class RowScales:
    """One scale, ``value``, of all rows; or, ``per_row``, that of each row's largest element, and at least ``value``.

    ``buffer`` float32 [rows] is where the latter lie, once they are computed.
    """

    value: float
    per_row: bool = False
    buffer: Buffer | None = None
