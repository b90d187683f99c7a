"""RotaryTable on a GPU."""

from __future__ import annotations

from ..cuda.lowering import Lowering
from ..launch import Command, features, kernel, launch, symbol


def lower(op: Lowering) -> list[Command]:
    """cos, sin = scale * cos, sin(position * inv_freq), float32, for num_tokens rows."""
    cos, sin = op.new("cos", "float32"), op.new("sin", "float32")
    half_dim = features(cos)
    specialised = kernel("rotary_table/cuda.cuh", "rotary_table", half_dim, 0, {"TL_HALF_DIM": half_dim})
    operands = (cos, sin, op.step_input("position_ids"), op.vector("inv_freq"))
    return [launch(specialised, (symbol("num_tokens"),), *operands, op.attribute("scale"))]
