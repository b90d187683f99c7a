"""Quantizes rows to 8 bits: GEMVs quantize what they read, epilogues quantize rows for later operators.

``plugins/cuda/lowering.py`` describes the attributes of GEMVs and epilogues.
"""

from dataclasses import replace

from trtllm_lite.builder.cuda.ops import Attributes, Links, Op, ProgramKind
from trtllm_lite.builder.graph import scalar_constant

_KIND = "QuantizeRows"


def quantized_rows(ops: list[Op], program: ProgramKind) -> list[Op]:
    """Product(QuantizeRows(z)) becomes Product(z) with scales if the product quantizes rows itself.

    Otherwise QuantizeRows and the product both have the scales; a single scale for all rows is an attribute, not an
    operand.
    """
    links = Links(ops)
    return [_without_static_operand(_with_scales(op, links, program)) for op in ops]


def quantize_epilogue(ops: list[Op], _program: ProgramKind) -> list[Op]:
    """QuantizeRows(x=RmsNorm(z)) becomes RmsNorm(z) -> bytes. If scales are static, PagedAttention and 8-bit
    GatedLinear write bytes in the same way."""
    links = Links(ops)
    sources = {op: source for op in ops if (source := _source(op, links)) is not None}
    rounded = {source: op for op, source in sources.items()}
    rewritten = []
    for op in ops:
        if op in rounded:
            quantize = rounded[op]
            outputs = {**op.outputs, **quantize.outputs}
            rewritten.append(replace(op, outputs=outputs, attributes={**op.attributes, **quantize.attributes}))
        elif op not in sources:
            rewritten.append(op)
    return rewritten


def _source(op: Op, links: Links) -> Op | None:
    """Return the operator that can write quantized rows itself, if QuantizeRows is their only reader."""
    if op.kind != _KIND or links.only_reader(op.inputs["x"]) is not op:
        return None
    kinds = ("RmsNorm", "GatedLinear", "PagedAttention")
    norm, gated, attention = (links.producer(op.inputs["x"], kind) for kind in kinds)
    if norm is not None:
        return norm if norm.outputs["y"] is op.inputs["x"] else None
    if attention is not None:
        return None if op.attributes["y_row_scales"] else attention
    can = gated is not None and not op.attributes["y_row_scales"] and "x_type" in gated.attributes
    return gated if can else None


def _with_scales(op: Op, links: Links, program: ProgramKind) -> Op:
    if op.kind == _KIND:
        return replace(op, attributes=_scales("y", op))
    if "x_scale" not in op.inputs:
        return op
    quantize = links.producer(op.inputs["x"], _KIND)
    assert quantize is not None
    scaled = replace(op, attributes={**op.attributes, **_scales("x", quantize)})
    if program.few_rows(scaled) is None:
        return scaled
    return scaled.without("x_scale").with_inputs(x=quantize.inputs["x"])


def _scales(operand: str, quantize: Op) -> Attributes:
    static = scalar_constant(quantize.inputs.get("scale"))
    value = float(quantize.attributes["min_scale"] if static is None else static)
    rounding = {f"{operand}_type": quantize.attributes["to"], f"{operand}_scale": value}
    return {**rounding, f"{operand}_row_scales": int(static is None)}


def _without_static_operand(op: Op) -> Op:
    per_row = any(op.attributes.get(f"{operand}_row_scales") for operand in ("x", "y"))
    if per_row:
        return op
    return op.without("scale", "y_scale") if op.kind == _KIND else op.without("x_scale")
