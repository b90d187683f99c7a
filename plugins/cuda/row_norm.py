"""Helpers for kernels that normalize rows: one block per row, with an optional residual added before the norm."""

from __future__ import annotations

from dataclasses import dataclass

from ..launch import DTYPE_FLAGS, Buffer, Kernel, features, kernel
from .lowering import Lowering


def threads_of_row(op: Lowering, hidden: int, most: int = 512) -> int:
    """The threads of a block that holds a row of ``hidden`` elements in registers, in vectors of eight.

    Raises BuildError for rows that do not consist of such vectors.
    """
    if hidden % 8:
        op.refuse(f"its rows have {hidden} elements, expected a multiple of 8: build for --target cpu")
    return min(most, -(-hidden // 256) * 32)


@dataclass(frozen=True)
class RowNorm:
    """A norm of rows: y = norm(x), or total = x + residual and y = norm(total)."""

    y: Buffer
    x: Buffer
    residual: Buffer | None
    total: Buffer | None

    @classmethod
    def of(cls, op: Lowering) -> RowNorm:
        """Take the operands of ``op``; a sum that no operator reads is scratch memory."""
        x, residual, total = op.rows("x"), op.optional_rows("residual"), None
        if residual is not None:
            total = op.new("sum") if op.has("sum") else Buffer(f"{op.name}.sum", op.dtype, op.extents("y"))
        return cls(op.new("y"), x, residual, total)

    def kernel(self, source: str, name: str, **more: int) -> Kernel:
        """The kernel for these rows. Each block holds a row in registers, with eight or more elements per thread."""
        hidden = features(self.y)
        vectors = 1 << (hidden // 8 - 1).bit_length()
        threads = min(512, max(32, vectors if vectors <= 128 else vectors // 2))
        defines = more | {
            "TL_HIDDEN": hidden,
            "TL_THREADS": threads,
            "TL_RESIDUAL": int(self.residual is not None),
            "TL_FP16": DTYPE_FLAGS[self.x.dtype],
        }
        return kernel(source, name, threads, 0, defines)
