"""Recognises attention sinks as network/sinks.py builds them from standard operators.

Both caches begin with a token of zeros, which total lengths count. The mask adds the sink of each head to the scores of
that token and zeros to all others: Reshape(sinks) -> Pad, then Expand to all queries, or Where(Pad(mask), that, -inf).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from trtllm_lite.builder.graph import (
    attribute,
    dims,
    integers,
    produced_by,
    scalar_constant,
    small_constant,
    weight_tensor,
)
from trtllm_lite.builder.passes.attention_pattern import expect
from trtllm_lite.network.sinks import without_sink


@dataclass(frozen=True)
class Sinks:
    """The sink ``scores`` [num_heads], and the mask and the lengths that attention would have without sinks."""

    scores: ir.Value | None
    mask: ir.Value | None
    lengths: ir.Value | None


def match_sinks(attention: ir.Node) -> Sinks:
    """Match the sinks of ``attention``; their scores are None if it has none. Raises MismatchError."""
    _, key, value, mask, _, _, lengths = (*attention.inputs, *[None] * 7)[:7]
    behind = [cache is not without_sink(cache) for cache in (key, value)]
    if not any(behind):
        return Sinks(None, mask, lengths)
    expect(all(behind), "one of its caches begins with a token of zeros, and the other does not")
    expect(not attribute(attention, "softcap", 0.0), "its scores have a softcap, and it has sinks")
    added, seen = _match_mask(mask)
    one_more = produced_by(lengths, "Add")
    counts = one_more is not None and scalar_constant(one_more.inputs[1]) == 1
    expect(counts, "its key lengths do not count the token of zeros")
    assert one_more is not None
    return Sinks(_match_scores(added), seen, one_more.inputs[0])


def _match_mask(mask: ir.Value | None) -> tuple[ir.Value | None, ir.Value | None]:
    """The value added to scores, and the mask of all tokens but the first. Raises MismatchError."""
    expand, where = produced_by(mask, "Expand"), produced_by(mask, "Where")
    if expand is not None:
        return expand.inputs[0], None
    pad = None if where is None else produced_by(where.inputs[0], "Pad")
    expect(pad is not None, "the scores of its token of zeros are not those of sinks")
    assert pad is not None
    assert where is not None
    hides = scalar_constant(where.inputs[2]) == float("-inf")
    shows = integers(pad.inputs[1]) == [0, 0, 0, 1, 0, 0, 0, 0] and _is_true(pad.inputs[2:])
    expect(hides and shows, "its mask hides the token of zeros, or does not hide others")
    return where.inputs[1], pad.inputs[0]


def _match_scores(added: ir.Value | None) -> ir.Value:
    pad = produced_by(added, "Pad")
    column = None if pad is None else produced_by(pad.inputs[0], "Reshape")
    scores = None if column is None else column.inputs[0]
    is_vector = weight_tensor(scores) is not None and scores is not None and scores.dtype == ir.DataType.FLOAT
    expect(is_vector and len(dims(scores) or ()) == 1, "its sinks are no float32 vector")
    assert pad is not None
    assert column is not None
    assert scores is not None
    expect(dims(column.outputs[0]) == (1, *(dims(scores) or ()), 1, 1), "it does not have one sink per head")
    concat = produced_by(pad.inputs[1], "Concat")
    behind = concat is not None and integers(concat.inputs[0]) == [0] * 7 and len(pad.inputs) == 2
    expect(behind, "its sinks are not the scores of the first token")
    return scores


def _is_true(filling: Sequence[ir.Value | None]) -> bool:
    found = small_constant(filling[0]) if len(filling) == 1 else None
    return found is not None and found.dtype == bool and bool(found.all())
