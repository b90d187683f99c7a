"""Fuses the pooling of a text to one row (a mean over tokens, or the first row; perhaps normalised) into Pooling.

mean: MatMul(Less(Range(seq), seq_lens), rows) / seq_lens; first: Gather(rows, 0) along the sequence; then perhaps
LpNormalization. The result is an encoder's output, or what a head computes the output from.
"""

from collections.abc import Iterable

import onnx_ir as ir

from trtllm_lite.builder.graph import (
    attribute,
    dims,
    fused_node,
    only_user,
    produced_by,
    replace_value,
    scalar_constant,
    site,
    value_of,
)
from trtllm_lite.builder.passes.attention_pattern import MismatchError, expect, match_unpacked
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.builder.passes.encoder_masks import counts_slots
from trtllm_lite.builder.passes.remove_padding import NUM_SEQS, cu_seqlens_of, drop_padding, is_seq_lens


def _rewrite(graph: ir.Graph) -> list[Decision]:
    row = _pooled(graph.outputs[0])
    producer = row.producer()
    assert producer is not None
    place = site(producer)
    try:
        source, attributes = _match(row)
    except MismatchError as mismatch:
        return [Decision(place, False, str(mismatch))]
    inputs = {"x": source, "cu_seqlens": cu_seqlens_of(graph)}
    output = value_of(f"{place}.pooling", ir.DataType.FLOAT, dims(row) or ())
    graph.insert_before(producer, fused_node("Pooling", place, inputs, {"y": output}, attributes))
    replace_value(row, output)
    drop_padding(graph)
    return [Decision(place, True)]


def _pooled(result: ir.Value) -> ir.Value:
    """The row of a text from which ``result`` is computed, normalised if something normalises it."""
    row = result
    while (earlier := _operand_of_texts(row)) is not None:
        row = earlier
    norm = only_user(row)
    return norm.outputs[0] if norm is not None and norm.op_type == "LpNormalization" else row


def _operand_of_texts(row: ir.Value) -> ir.Value | None:
    """The operand with a row for each text of the operator that makes ``row``; None if it has no such operand."""
    producer = row.producer()
    operands = () if producer is None else producer.inputs
    shapes = {value: dims(value) or () for value in operands if value is not None}
    return next((value for value, shape in shapes.items() if len(shape) == 2 and shape[0] == NUM_SEQS), None)


def _match(row: ir.Value | None) -> tuple[ir.Value, dict[str, str]]:
    """The packed rows that are pooled, and the attributes of Pooling. Raises MismatchError."""
    norm = produced_by(row, "LpNormalization")
    if norm is not None:
        is_l2 = attribute(norm, "axis", -1) in (-1, 1) and attribute(norm, "p", 2) == 2
        expect(is_l2, "rows are normalised otherwise than by their Euclidean norm")
        row = norm.inputs[0]
    normalization = "none" if norm is None else "l2"
    gather = produced_by(row, "Gather")
    if gather is not None:
        is_first = attribute(gather, "axis", 0) == 1 and scalar_constant(gather.inputs[1]) == 0
        expect(is_first, "it takes another row than the first of a text")
        return match_unpacked(gather.inputs[0], "text"), {"mode": "first", "normalization": normalization}
    return _match_mean(row), {"mode": "mean", "normalization": normalization}


def _match_mean(row: ir.Value | None) -> ir.Value:
    divide = produced_by(_operand(row, "Squeeze"), "Div")
    expect(divide is not None, "the row of a text is neither a mean nor the first")
    assert divide is not None
    total, counts = divide.inputs
    expect(is_seq_lens(_operand(_operand(counts, "Cast"), "Unsqueeze")), "sums are not divided by seq_lens")
    product = produced_by(total, "MatMul")
    less = produced_by(_operand(None if product is None else product.inputs[0], "Cast"), "Less")
    expect(product is not None and less is not None, "the row of a text is not a sum over its tokens")
    assert product is not None
    assert less is not None
    slots, lengths = less.inputs
    expect(counts_slots(slots) and is_seq_lens(_operand(lengths, "Unsqueeze")), "it sums rows of other tokens")
    return match_unpacked(product.inputs[1], "text")


def _operand(value: ir.Value | None, op_type: str) -> ir.Value | None:
    """The first input of the operator that makes ``value``; None if that operator is not ``op_type``."""
    node = produced_by(value, op_type)
    return None if node is None else node.inputs[0]


def _requires(graph: ir.Graph) -> Iterable[str]:
    if len(graph.outputs) != 1:
        yield f"expected one output, found {len(graph.outputs)}"


POOLING = GraphPass("pooling", _rewrite, _requires)
