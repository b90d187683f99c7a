"""[batch, seq, ...] becomes packed [num_tokens, ...]: operators that treat tokens alike run on real tokens only.

These operators move to packed rows. Where the rest of the graph (attention, which alone knows about sequences)
reads a packed value, it is unpacked by ``Gather(value, padded_rows)``; where it hands a value back, that is packed by
``Gather(Flatten(value), packed_rows)``. ``padded_rows[b, s]`` is the packed row of a padded slot (any row for padding)
and ``packed_rows[t]`` the flat padded slot of a row. The pass paged_attention removes both kinds of Gather.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import onnx_ir as ir

from trtllm_lite.builder.graph import (
    attribute,
    dims,
    integers,
    nodes_of,
    produced_by,
    remove_dead,
    remove_unused_inputs,
    value_of,
)
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.common.vocabulary import FEATURES, PATCHES, SEQ_LENS
from trtllm_lite.network.functions import TOKEN_WISE, is_call
from trtllm_lite.network.module_kinds import module_kind

TOKEN_IDS, POSITION_IDS, PAST_LENS = "token_ids", "position_ids", "past_lens"
PADDED_ROWS, PACKED_ROWS = "padded_rows", "packed_rows"
NUM_TOKENS, NUM_SEQS, NUM_IMAGE_ROWS = "num_tokens", "num_seqs", "num_image_rows"
CU_SEQLENS = "cu_seqlens"
_LENGTHS = (PAST_LENS, SEQ_LENS)
IMAGE_SEQ = "image_seq"  # the symbol of the rows that a vision tower makes of a sequence

_ELEMENTWISE = frozenset(
    {"Abs", "Add", "Cast", "Clip", "Cos", "Div", "Erf", "Exp", "Gelu", "Less", "Max", "Mul", "Neg", "Pow"}
    | {"Reciprocal", "Relu", "Sigmoid", "Sin", "Softplus", "Sqrt", "Sub", "Swish", "Tanh", "Where"}
)


@dataclass
class _Rewrite:
    """The state of one run of the pass. ``rows`` are the values that are packed already."""

    graph: ir.Graph
    batch: str
    seq: str
    rows: set[ir.Value] = field(default_factory=set)
    constants: set[ir.Value] = field(default_factory=set)
    unpacked: dict[ir.Value, ir.Value] = field(default_factory=dict)
    packed: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def is_padded(self, value: ir.Value | None) -> bool:
        """Whether ``value`` is [batch, seq] or [batch, seq, features]. Values split into heads belong to attention."""
        return self.extent(value) is not None

    def extent(self, value: ir.Value | None) -> str | None:
        """The number of packed rows of a padded ``value``; None if it is not padded."""
        shape = dims(value)
        if shape is None or len(shape) not in (2, 3) or shape[0] != self.batch:
            return None
        return {self.seq: NUM_TOKENS, IMAGE_SEQ: NUM_IMAGE_ROWS}.get(str(shape[1]))

    def is_token_wise(self, node: ir.Node) -> bool:
        """Whether each token's output depends only on that token's input and constants."""
        tokens = [x for x in node.inputs if x is not None and (x in self.rows or self.is_padded(x))]
        constants = [x for x in node.inputs if x is not None and x not in tokens]
        return (
            bool(tokens)
            and all(x in self.constants for x in constants)
            and all(self.is_padded(output) for output in node.outputs)
            and (_keeps_rows_apart(node, tokens, constants) or self.merges_rows(node))
        )

    def merges_rows(self, node: ir.Node) -> bool:
        """Whether the operator makes rows of an image of its tokens, as many of one after the other for each."""
        shape = integers(node.inputs[1]) if node.op_type == "Reshape" else None
        return shape is not None and shape[:2] == [0, -1] and self.extent(node.outputs[0]) == NUM_IMAGE_ROWS

    def pack(self, value: ir.Value, before: ir.Node) -> ir.Value:
        """The packed rows of a padded value."""
        if value not in self.packed:
            features = list(dims(value) or ())[2:]
            flat = self._append(before, "Flatten", f"{value.name}.flat", [value], ["padded_tokens", *features], axis=2)
            name, rows = f"{value.name}.pack", self._input(PACKED_ROWS)
            self.packed[value] = self._append(before, "Gather", name, [flat, rows], [NUM_TOKENS, *features], axis=0)
        return self.packed[value]

    def unpack(self, value: ir.Value, before: ir.Node) -> ir.Value:
        """The padded form of packed rows."""
        if value not in self.unpacked:
            shape = [self.batch, self.seq, *list(dims(value) or ())[1:]]
            inputs = [value, self._input(PADDED_ROWS)]
            self.unpacked[value] = self._append(before, "Gather", f"{value.name}.unpack", inputs, shape, axis=0)
        return self.unpacked[value]

    def _input(self, name: str) -> ir.Value:
        return next(value for value in self.graph.inputs if value.name == name)

    def _append(
        self, before: ir.Node, op_type: str, name: str, inputs: list[ir.Value], shape: list, **attributes: int
    ) -> ir.Value:
        output = value_of(name, inputs[0].dtype or ir.DataType.FLOAT, shape)
        node = ir.node(op_type, inputs, attributes, outputs=[output], name=name)
        self.graph.insert_before(before, node)
        return output


def _keeps_rows_apart(node: ir.Node, tokens: list[ir.Value], constants: list[ir.Value]) -> bool:
    """Whether the operator, with its attributes, works on the last axis or on single elements."""
    if is_call(node):
        return node.op_type in TOKEN_WISE
    match node.op_type:
        case "MatMul":
            return tokens == [node.inputs[0]] and len(dims(node.inputs[1]) or ()) == 2
        case "Gather":  # a lookup of rows in a table, or a reordering of features
            axis = attribute(node, "axis", 0)
            return (axis == 0 and tokens == [node.inputs[1]]) or (axis == -1 and tokens == [node.inputs[0]])
        case "Unsqueeze":
            return integers(node.inputs[1]) == [-1]
        case "RMSNormalization" | "LayerNormalization":
            return attribute(node, "axis", -1) == -1 and len(dims(tokens[0]) or ()) > 1
        case "Softmax":
            return attribute(node, "axis", -1) == -1
        case "TopK":
            return attribute(node, "axis", -1) == -1 and tokens == [node.inputs[0]]
        case "ScatterElements" | "GatherElements" | "Concat":
            return attribute(node, "axis", 0) == -1 and not constants
        case "ReduceMax" | "ReduceSum":
            return integers(node.inputs[1]) == [-1] and attribute(node, "keepdims", 1) == 1
        case "QuantizeLinear" | "DequantizeLinear":  # the scale is a scalar, or blocks run along the last axis
            return attribute(node, "axis", 1) == -1 or all(len(dims(x) or ()) == 0 for x in constants)
        case "Split":
            return attribute(node, "axis", 0) == -1
        case op_type:
            return op_type in _ELEMENTWISE and all(len(dims(x) or ()) <= 1 for x in constants)


def _constants(graph: ir.Graph) -> set[ir.Value]:
    """Initializers and values computed from constants alone."""
    constants = set(graph.initializers.values())
    for node in graph:
        if all(x is None or x in constants for x in node.inputs):
            constants.update(node.outputs)
    return constants


def _replace_inputs(state: _Rewrite) -> None:
    """Take packed int32 inputs; the standard operators that want int64 read them through a Cast."""
    graph, first = state.graph, state.graph[0]
    old = {value.name: value for value in graph.inputs}
    names = [name for name in module_kind(graph).inputs if name != PATCHES]
    new = [
        value_of(TOKEN_IDS, ir.DataType.INT32, [NUM_TOKENS]),
        value_of(POSITION_IDS, ir.DataType.INT32, [NUM_TOKENS]),
        value_of(next(name for name in names if name in _LENGTHS), ir.DataType.INT32, [NUM_SEQS]),
    ]
    for name, value in zip(names, new, strict=True):
        padded = old[name]
        padded.name = f"{name}.int64"
        node = ir.node(
            "Cast", [value], {"to": ir.DataType.INT64}, outputs=[value_of(padded.name, ir.DataType.INT64, [])]
        )
        node.name = f"{value.name}.cast"
        node.outputs[0].shape = ir.Shape(value.shape or ())
        padded.replace_all_uses_with(node.outputs[0])
        graph.inputs.remove(padded)
        graph.insert_before(first, node)
        if value.name not in _LENGTHS:
            state.rows.add(node.outputs[0])
    maps = [
        value_of(PADDED_ROWS, ir.DataType.INT64, [state.batch, state.seq]),
        value_of(PACKED_ROWS, ir.DataType.INT64, [NUM_TOKENS]),
    ]
    graph.inputs[:0] = [*new, *maps]
    for given in (value for value in graph.inputs if value.name in (FEATURES, PATCHES)):
        given.shape = ir.Shape([NUM_TOKENS, *(dims(given) or ())[2:]])
        state.rows.add(given)


def is_seq_lens(value: ir.Value | None) -> bool:
    """Whether ``value`` is the input ``seq_lens`` of an encoder, cast to the type that standard operators take."""
    cast = produced_by(value, "Cast")
    source = None if cast is None else cast.inputs[0]
    return source is not None and source.is_graph_input() and source.name == SEQ_LENS


def cu_seqlens_of(graph: ir.Graph) -> ir.Value:
    """The step input by which operators on packed rows tell sequences apart; added if the graph lacks it."""
    found = _input_named(graph, CU_SEQLENS)
    if found is None:
        found = value_of(CU_SEQLENS, ir.DataType.INT32, [f"{NUM_SEQS}_plus_1"])
        graph.inputs.append(found)
    return found


def drop_padding(graph: ir.Graph) -> None:
    """Remove the nodes that computed padding and masks of an encoder, if they have no readers."""
    remove_dead(graph)
    names = (PADDED_ROWS, PACKED_ROWS, SEQ_LENS)
    remove_unused_inputs(graph, [value for value in graph.inputs if value.name in names])


def _rename_symbol(graph: ir.Graph, old: str, new: str) -> None:
    values = [*graph.inputs, *(output for node in graph for output in node.outputs)]
    for value in values:
        shape = dims(value)
        if shape is not None and old in shape:
            value.shape = ir.Shape(new if dim == old else dim for dim in shape)


def _rewrite(graph: ir.Graph) -> list[Decision]:
    batch, seq = dims(_input_named(graph, "input_ids")) or ()
    _rename_symbol(graph, str(batch), NUM_SEQS)
    state = _Rewrite(graph, NUM_SEQS, str(seq), constants=_constants(graph))
    _replace_inputs(state)
    casts = set(state.rows)
    for node in list(graph):
        if casts.intersection(node.outputs):
            continue
        token_wise = state.is_token_wise(node)
        for index, value in enumerate(node.inputs):
            if token_wise and state.is_padded(value) and value is not None:
                node.replace_input_with(index, state.pack(value, node))
            elif not token_wise and value in state.rows and value is not None:
                node.replace_input_with(index, state.unpack(value, node))
        if token_wise:
            for output in node.outputs:
                output.shape = ir.Shape([str(state.extent(output)), *(dims(output) or ())[2:]])
                state.rows.add(output)
    return []


def _input_named(graph: ir.Graph, name: str) -> ir.Value | None:
    return next((value for value in graph.inputs if value.name == name), None)


def _requires(graph: ir.Graph) -> Iterable[str]:
    for name, rank in module_kind(graph).inputs.items():
        value = _input_named(graph, name)
        shape = dims(value)
        if shape is None or len(shape) != rank or not all(isinstance(dim, str) for dim in shape[:2]):
            yield f"expected an input {name} of rank {rank} with symbolic extents, found {shape}"


def _ensures(graph: ir.Graph) -> Iterable[str]:
    for node in nodes_of(graph, "MatMul"):
        if len(dims(node.inputs[0]) or ()) != 2 and len(dims(node.inputs[1]) or ()) == 2:
            yield f"{node.name} still multiplies padded rows"


REMOVE_PADDING = GraphPass("remove_padding", _rewrite, _requires, _ensures)
