"""Recognises a sliding-window mask by its meaning, in whichever operators it is written.

The mask of a window compares key indices with positions: after moving constants, ``key > position - window`` (the
causal bound is Attention's own). Greater, Less and their OrEqual forms, and constants added to or subtracted from
either side, are all the same mask. Masks of chunks, ``key >= position / size * size``, and masks of a first position
are recognised in one form each.
"""

import onnx_ir as ir

from trtllm_lite.builder.graph import attribute, dims, produced_by, scalar_constant
from trtllm_lite.builder.passes.attention_pattern import MismatchError, expect
from trtllm_lite.builder.passes.remove_padding import PADDED_ROWS, POSITION_IDS

_COMPARISONS = {"Greater": 0, "GreaterOrEqual": 1, "Less": 0, "LessOrEqual": 1}
_TRANSPARENT = ("Cast", "Unsqueeze", "Identity")


def match_window(mask: ir.Value | None) -> int:
    """The window that ``mask`` [batch, 1, seq, keys] lets through; 0 if there is no mask. Raises MismatchError."""
    if mask is None:
        return 0
    node = mask.producer()
    expect(node is not None and node.op_type in _COMPARISONS, "the mask is not a comparison of keys with positions")
    assert node is not None
    left, right = (_affine(value) for value in node.inputs)
    if node.op_type.startswith("Less"):
        left, right = right, left
    expect((left[0], right[0]) == ("key", "query"), "the mask does not bound keys from below")
    # key + a > query + b  <=>  key > query - (a - b);  with >= one more key is visible
    window = left[1] - right[1] + _COMPARISONS[node.op_type]
    expect(window > 0, f"the mask hides every key (a window of {window})")
    shape = dims(mask)
    expect(shape is not None and len(shape) == 4 and shape[1] == 1, "the mask differs between heads")
    return window


def match_first_position(mask: ir.Value | None) -> int:
    """The p of a mask that lets through keys at positions >= min(p, position of the query); 0 for other masks."""
    node = None if mask is None else mask.producer()
    if node is None or node.op_type != "GreaterOrEqual":
        return 0
    bound = None if node.inputs[1] is None else node.inputs[1].producer()
    if bound is None or bound.op_type != "Min" or len(bound.inputs) != 2:
        return 0
    first = scalar_constant(bound.inputs[1])
    sides = _affine(node.inputs[0]), _affine(bound.inputs[0])
    expect(isinstance(first, int) and first > 0 and sides == (("key", 0), ("query", 0)), "the mask has no known form")
    assert isinstance(first, int)
    return first


def match_chunk(mask: ir.Value | None) -> int:
    """The c of a mask that lets through keys at positions >= position // c * c; 0 for other masks."""
    node = None if mask is None else mask.producer()
    start = None if node is None or node.op_type != "GreaterOrEqual" else produced_by(node.inputs[1], "Mul")
    number = None if start is None else produced_by(start.inputs[0], "Div")
    if node is None or start is None or number is None:
        return 0
    size, again = (scalar_constant(found.inputs[1]) for found in (start, number))
    sides = _affine(node.inputs[0]), _affine(number.inputs[0])
    is_chunk = isinstance(size, int) and size > 0 and size == again and sides == (("key", 0), ("query", 0))
    expect(is_chunk, "the mask has no known form")
    assert isinstance(size, int)
    return size


def position_plus(value: ir.Value | None) -> int | None:
    """The c if ``value`` is position_ids + c, else None."""
    try:
        what, offset = _affine(value)
    except MismatchError:
        return None
    return offset if what == "query" else None


def _affine(value: ir.Value | None) -> tuple[str, int]:
    """(what, offset): ``what`` is "key" (0, 1, 2, … along the last axis) or "query" (position_ids)."""
    offset = 0
    while value is not None:
        node = value.producer()
        if node is None:
            if value.is_graph_input() and value.name == POSITION_IDS:
                return "query", offset
            break
        if node.op_type == "Range":
            expect(
                [scalar_constant(node.inputs[i]) for i in (0, 2)] == [0, 1], "the mask's keys do not count 0, 1, 2, …"
            )
            return "key", offset
        if node.op_type in ("Add", "Sub"):
            value, step = _constant_step(node)
            offset += step
        elif _is_transparent(node):
            value = node.inputs[0]
        else:
            break
    raise MismatchError("the mask compares something other than key indices and position_ids")


def _constant_step(node: ir.Node) -> tuple[ir.Value | None, int]:
    """The variable operand of x + c, c + x or x - c, and the signed constant."""
    left, right = node.inputs
    constant = scalar_constant(right)
    if constant is None and node.op_type == "Add":
        left, constant = right, scalar_constant(left)
    expect(isinstance(constant, int), "the window of the mask is not an integer constant")
    assert isinstance(constant, int)
    return left, constant if node.op_type == "Add" else -constant


def _is_transparent(node: ir.Node) -> bool:
    if node.op_type == "Gather":
        rows = node.inputs[1]
        return rows is not None and rows.name == PADDED_ROWS
    if node.op_type == "Cast":
        # A float position is rounded above 2^24.
        return attribute(node, "to") in (ir.DataType.INT32, ir.DataType.INT64)
    return node.op_type in _TRANSPARENT
