"""What the passes for recurrent layers share: the states that a layer keeps, and the operators that change them.

The states past_conv.i and past_recurrent.i become conv_state.i and recurrent_state.i, one to a block. The operators'
``cache_group`` is set when cache groups are assigned, and their ``taken_back`` by ``make_room_for_drafts``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from trtllm_lite.builder.graph import Dim, attribute, dims, fused_node, operands, value_of
from trtllm_lite.builder.passes.attention_pattern import expect, is_packing, layer_of
from trtllm_lite.builder.passes.paged_attention import NUM_BLOCKS, add_shared_inputs
from trtllm_lite.builder.passes.remove_padding import NUM_TOKENS, PADDED_ROWS
from trtllm_lite.common.vocabulary import FLOAT32
from trtllm_lite.plugins.replay import REPLAYED, ReplayState
from trtllm_lite.plugins.schema import all_schemas

_FLOAT = ir.DataType.FLOAT
_UNASSIGNED = {"cache_group": 0, "taken_back": 1}


@dataclass(frozen=True)
class State:
    """A part of a layer's state, called ``kind`` in plans: an input of the network and an output."""

    kind: str
    past: ir.Value
    present: ir.Value


def match_state(kind: str, past: ir.Value | None, present: ir.Value) -> State:
    """The part ``kind`` of a layer's state. Raises MismatchError unless the network keeps it."""
    expect(past is not None and past.is_graph_input(), f"its {kind} is not an input of the network")
    expect(present.is_graph_output(), f"its {kind} is not an output of the network")
    assert past is not None
    return State(kind, past, present)


def extent_of(value: ir.Value, axis: int) -> int:
    """An extent of ``value``, which is known."""
    extent = (dims(value) or ())[axis]
    assert isinstance(extent, int)
    return extent


def layout_of(state: State, decays: int) -> ReplayState:
    """What is kept of a head's matrix ``state``, if one token can be taken back; ``decays``: those of a token."""
    return ReplayState(extent_of(state.past, 2), extent_of(state.past, 3), decays, REPLAYED, 1)


def insert_recurrent(
    graph: ir.Graph,
    before: ir.Node,
    op_type: str,
    operands: Mapping[str, ir.Value | None],
    state: State,
    form: Sequence[Dim | None],
    attributes: Mapping[str, int | float | str],
) -> ir.Value:
    """Insert an operator in place of the node ``before``; returns its packed rows, which replace that one's output.

    Its state, of the shape ``form`` if one token can be taken back, takes the place of an input and an output of the
    network.
    """
    number, shape = layer_of(state.past), [NUM_BLOCKS, *form]
    past, present = (value_of(f"{kind}.{number}", _FLOAT, shape) for kind in (state.kind, f"{state.kind}_out"))
    padded = before.outputs[0]
    y = value_of(f"{padded.name}.packed", _FLOAT, [NUM_TOKENS, *(dims(padded) or ())[2:]])
    inputs = {**operands, state.kind: past, **{str(value.name): value for value in add_shared_inputs(graph)}}
    outputs = {"y": y, f"{state.kind}_out": present}
    graph.insert_before(before, fused_node(op_type, str(before.name), inputs, outputs, {**attributes, **_UNASSIGNED}))
    graph.inputs[graph.inputs.index(state.past)] = past
    graph.outputs[graph.outputs.index(state.present)] = present
    _replace_padded(graph, padded, y)
    return y


def make_room_for_drafts(graph: ir.Graph, max_draft_len: int) -> None:
    """Let the states of all layers hold so many draft tokens besides a token that may be taken back."""
    for node in graph:
        if "taken_back" not in node.attributes:
            continue
        node.attributes["taken_back"] = ir.AttrInt64("taken_back", 1 + max_draft_len)
        (kept,) = (operands(node)[argument.name] for argument in all_schemas()[node.op_type].caches)
        extents = list(dims(kept) or ())
        if "replay_tokens" in node.attributes:
            layout = ReplayState.of({name: attribute(node, name) for name in node.attributes}, FLOAT32)
            extents[2] = layout.size
        else:
            num_kept = extents[1]
            assert isinstance(num_kept, int)
            extents[1] = num_kept + max_draft_len
        for value in (kept, node.outputs[1]):
            value.shape = ir.Shape(extents)


def _replace_padded(graph: ir.Graph, padded: ir.Value, packed: ir.Value) -> None:
    """Let the readers of ``padded`` [batch, seq, features] read ``packed``, by an unpacking Gather where they must."""
    for flatten in [use.node for use in padded.uses() if use.node.op_type == "Flatten"]:
        for gather in [use.node for use in flatten.outputs[0].uses() if is_packing(use.node)]:
            gather.outputs[0].replace_all_uses_with(packed, replace_graph_outputs=True)
            graph.remove(gather, safe=True)
        if not flatten.outputs[0].uses():
            graph.remove(flatten, safe=True)
    if not padded.uses():
        return
    rows = next(value for value in graph.inputs if value.name == PADDED_ROWS)
    unpacked = value_of(f"{padded.name}.unpack", _FLOAT, dims(padded) or ())
    gather = ir.node("Gather", [packed, rows], {"axis": 0}, outputs=[unpacked], name=str(unpacked.name))
    producer = packed.producer()
    assert producer is not None
    graph.insert_after(producer, gather)
    padded.replace_all_uses_with(unpacked)
