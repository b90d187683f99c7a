"""How kernels are told which columns of rows an operator reads in place (``columns`` in schemas)."""

from __future__ import annotations

from dataclasses import dataclass

from ..launch import Extent, Operand, Slice, features
from .lowering import Lowering

_ELEMENT_BYTES = 2  # of activations


@dataclass(frozen=True)
class Columns:
    """Columns of 16-bit rows: ``operand`` begins at the first of them, and rows are ``pitch`` elements apart."""

    operand: Operand
    pitch: int

    @classmethod
    def of(cls, op: Lowering, name: str, *, in_pairs: bool = False) -> Columns:
        """The columns that ``op`` reads of its operand ``name``; ``in_pairs``: its kernel reads two at once."""
        rows, first = op.rows(name), op.attribute(f"{name}_first")
        if in_pairs and first % 2:
            op.refuse(f"its {name} begins at column {first}, expected an even number: build for --target cpu")
        return cls(Slice(rows, Extent(_ELEMENT_BYTES * first)) if first else rows, features(rows))
