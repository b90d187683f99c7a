"""Recognises the temperature of queries: 1 + attn_scale * log(1 + floor((position + offset) / floor_scale))."""

import onnx_ir as ir

from trtllm_lite.builder.graph import produced_by, scalar_constant
from trtllm_lite.builder.passes.window_mask import position_plus
from trtllm_lite.network.attention import Temperature


def match_temperature(query: ir.Value | None) -> tuple[ir.Value | None, Temperature | None]:
    """The scaled heads and the parameters of the scale; ``query`` itself and None if it is not scaled."""
    product = produced_by(query, "Mul")
    if product is None:
        return query, None
    temperature = _match_factor(product.inputs[1])
    return (query, None) if temperature is None else (product.inputs[0], temperature)


def _match_factor(value: ir.Value | None) -> Temperature | None:
    scaled = _without_constant(value, "Add", 1.0)
    product = produced_by(scaled, "Mul")
    attn_scale = None if product is None else scalar_constant(product.inputs[1])
    log = None if product is None else produced_by(product.inputs[0], "Log")
    cast = None if log is None else produced_by(_without_constant(log.inputs[0], "Add", 1.0), "Cast")
    division = None if cast is None else produced_by(cast.inputs[0], "Div")
    if division is None or not isinstance(attn_scale, float):
        return None
    floor_scale = scalar_constant(division.inputs[1])
    offset = position_plus(division.inputs[0])
    return Temperature(floor_scale, attn_scale, offset) if offset in (0, 1) and isinstance(floor_scale, int) else None


def _without_constant(value: ir.Value | None, op_type: str, constant: float) -> ir.Value | None:
    """Return x if ``value`` is ``x + constant``, else None."""
    node = produced_by(value, op_type)
    return node.inputs[0] if node is not None and scalar_constant(node.inputs[1]) == constant else None
