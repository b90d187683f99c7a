"""Recognises the masks of encoders by what they compute: windows on both sides of a query, and biases by distance.

window: Abs(slots - Min(position_ids, seq_lens - 1)) <= window; bias: Gather(table, Clip(key slots - query slots) + D).
Slots are 0, 1, … up to the padded length; position_ids are the same where there are tokens.
"""

import onnx_ir as ir

from trtllm_lite.builder.graph import attribute, dims, integers, produced_by, scalar_constant, weight_tensor
from trtllm_lite.builder.passes.attention_pattern import expect, is_sequence_extent, match_unpacked
from trtllm_lite.builder.passes.remove_padding import POSITION_IDS, is_seq_lens


def match_window(mask: ir.Value | None) -> int | None:
    """The window of ``mask`` [batch, 1, seq, seq], in tokens on each side of a query; None for other masks."""
    compare = produced_by(mask, "LessOrEqual")
    distances = None if compare is None else produced_by(compare.inputs[0], "Abs")
    if compare is None or distances is None:
        return None
    window = scalar_constant(compare.inputs[1])
    expect(isinstance(window, int) and window > 0, "the window of the mask is not a positive integer constant")
    assert isinstance(window, int)
    offsets = produced_by(distances.inputs[0], "Sub")
    expect(offsets is not None and counts_slots(offsets.inputs[0]), "the mask does not compare the slots of keys")
    assert offsets is not None
    _check_queries(offsets.inputs[1])
    return window


def _check_queries(value: ir.Value | None) -> None:
    """Raise MismatchError unless ``value`` [batch, 1, seq, 1] is the queries' positions, for padding the last one."""
    known = "the mask does not compare the positions of queries"
    bounded = produced_by(value, "Min")
    expect(bounded is not None and len(bounded.inputs) == 2, known)
    assert bounded is not None
    positions, last = (produced_by(side, "Unsqueeze") for side in bounded.inputs)
    expect(positions is not None and last is not None, known)
    assert positions is not None
    assert last is not None
    cast = produced_by(match_unpacked(positions.inputs[0], "position of a query"), "Cast")
    source = None if cast is None else cast.inputs[0]
    expect(source is not None and source.name == POSITION_IDS and integers(positions.inputs[1]) == [1, 3], known)
    minus_one = produced_by(last.inputs[0], "Sub")
    is_last = minus_one is not None and scalar_constant(minus_one.inputs[1]) == 1 and is_seq_lens(minus_one.inputs[0])
    expect(is_last and integers(last.inputs[1]) == [1, 2, 3], "the mask does not put padding at the last token")


def match_distance_bias(mask: ir.Value | None) -> ir.Value | None:
    """The table [heads, 2 * D + 1] of ``mask`` [1, heads, seq, seq]; None for other masks."""
    unsqueeze = produced_by(mask, "Unsqueeze")
    gather = None if unsqueeze is None else produced_by(unsqueeze.inputs[0], "Gather")
    if unsqueeze is None or gather is None:
        return None
    table, columns = gather.inputs
    shape = dims(table) or ()
    is_table = weight_tensor(table) is not None and table is not None and table.dtype == ir.DataType.FLOAT
    expect(is_table and len(shape) == 2 and attribute(gather, "axis", 0) == 1, "the bias is not of a float32 table")
    expect(integers(unsqueeze.inputs[1]) == [0], "the bias differs between texts")
    most = (shape[1] - 1) // 2 if isinstance(shape[1], int) else 0
    shifted = produced_by(columns, "Add")
    clipped = None if shifted is None else produced_by(shifted.inputs[0], "Clip")
    expect(shifted is not None and clipped is not None, "the bias is not of clipped distances")
    assert shifted is not None
    assert clipped is not None
    bounds = [scalar_constant(bound) for bound in (*clipped.inputs[1:], shifted.inputs[1])]
    expect(shape[1] == 2 * most + 1 and bounds == [-most, most, most], "the table does not have all clipped distances")
    offsets = produced_by(clipped.inputs[0], "Sub")
    sides = [None if offsets is None else produced_by(side, "Unsqueeze") for side in (offsets or clipped).inputs[:2]]
    found = [(integers(side.inputs[1]), counts_slots(side.inputs[0])) for side in sides if side is not None]
    expect(found == [([0], True), ([1], True)], "the bias is not by the distance from query to key")
    return table


def counts_slots(value: ir.Value | None) -> bool:
    """Whether ``value`` is 0, 1, … up to the padded length."""
    counting = produced_by(value, "Range")
    if counting is None:
        return False
    start, limit, step = counting.inputs
    squeeze = produced_by(limit, "Squeeze")
    is_whole = squeeze is not None and is_sequence_extent(squeeze.inputs[0])
    return scalar_constant(start) == 0 and scalar_constant(step) == 1 and is_whole
