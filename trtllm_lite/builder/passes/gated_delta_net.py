"""Fuses the operators of a recurrent layer (network/gated_delta_net.py) into CausalConv, GatedDeltaRule, GatedRmsNorm.

packed rows -> unpack -> Transpose -> Concat with the past -> Conv -> Swish -> Transpose -> call of the rule -> Reshape
to heads -> RMSNormalization -> Reshape -> pack -> Mul with Swish of the gate

The states past_conv.i and past_recurrent.i become conv_state.i and recurrent_state.i, one to a block. Nothing of the
layer reads padded values any more. ``cache_group`` and ``tokens_per_state`` are set when cache groups are assigned.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir
from numpy.typing import NDArray

from trtllm_lite.builder.graph import (
    attribute,
    dims,
    features_of,
    fused_node,
    integers,
    nodes_of,
    only_user,
    produced_by,
    replace_value,
    site,
    value_of,
    weight_tensor,
)
from trtllm_lite.builder.passes.attention_pattern import (
    MismatchError,
    expect,
    expect_node,
    is_packing,
    layer_of,
    match_unpacked,
)
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.builder.passes.paged_attention import NUM_BLOCKS, add_shared_inputs
from trtllm_lite.builder.passes.remove_padding import NUM_TOKENS, PADDED_ROWS
from trtllm_lite.network.functions import FUNCTIONS, GATED_DELTA_RULE
from trtllm_lite.network.tensors import add_initializer, extents, lazy

_FLOAT = ir.DataType.FLOAT
_UNASSIGNED = {"cache_group": 0, "tokens_per_state": 1}


@dataclass(frozen=True)
class _State:
    """A part of a layer's state, called ``kind`` in plans: an input of the network and an output."""

    kind: str
    past: ir.Value
    present: ir.Value


@dataclass(frozen=True)
class _Convolution:
    """``x`` are packed rows, ``weight`` is stored as [channels, 1, width]."""

    node: ir.Node
    x: ir.Value
    weight: ir.Value
    activation: str
    state: _State


@dataclass(frozen=True)
class _GatedNorm:
    """The norm of groups of features, and the packed ``gate``; ``output`` are packed rows."""

    weight: ir.Value
    epsilon: float
    gate: ir.Value
    output: ir.Value


def _rewrite(graph: ir.Graph) -> Iterator[Decision]:
    for rule in nodes_of(graph, GATED_DELTA_RULE, FUNCTIONS):
        try:
            convolution, norm = _match_convolution(rule.inputs[0]), _match_norm(rule.outputs[0])
            a, b = match_unpacked(rule.inputs[1], "decay"), match_unpacked(rule.inputs[2], "rate")
            state = _match_state("recurrent_state", rule.inputs[5], rule.outputs[1])
        except MismatchError as mismatch:
            yield Decision(site(rule), False, str(mismatch))
            continue
        qkv = _fuse_convolution(graph, convolution)
        y = _fuse_rule(graph, rule, [qkv, a, b], state)
        _fuse_norm(graph, rule, y, norm)
        yield Decision(site(rule), True)


def _match_state(kind: str, past: ir.Value | None, present: ir.Value) -> _State:
    expect(past is not None and past.is_graph_input(), f"its {kind} is not an input of the network")
    expect(present.is_graph_output(), f"its {kind} is not an output of the network")
    assert past is not None
    return _State(kind, past, present)


def _match_convolution(value: ir.Value | None) -> _Convolution:
    """The causal convolution that makes ``value`` [batch, seq, channels]. Raises MismatchError."""
    rows = expect_node(value, "Transpose", "input of the rule")
    swish = produced_by(rows.inputs[0], "Swish")
    mixed = rows.inputs[0] if swish is None else swish.inputs[0]
    conv = expect_node(mixed, "Conv", "input of the rule")
    concat = expect_node(conv.inputs[0], "Concat", "input of the convolution")
    expect(len(concat.inputs) == 2 and attribute(concat, "axis") == 2, "the convolution has no past before its inputs")
    past, columns = concat.inputs
    transposed = expect_node(columns, "Transpose", "input of the convolution")
    perms = [list(attribute(node, "perm", ())) for node in (rows, transposed)]
    expect(perms == [[0, 2, 1]] * 2, "the convolution does not run along sequences")
    weight = _conv_weight(conv)
    channels, _, width = dims(weight) or ()
    expect(swish is None or attribute(swish, "alpha", 1.0) == 1, "the activation of the convolution is not SiLU")
    expect(attribute(conv, "group", 1) == channels, "the convolution mixes channels")
    expect(set(conv.attributes) <= {"group", "kernel_shape"}, "the convolution has strides, gaps or padding")
    assert isinstance(width, int)
    expect((dims(past) or ())[1:] == (channels, width - 1), "the past of the convolution has another length")
    state = _match_state("conv_state", past, _present(concat, conv, width - 1))
    x = match_unpacked(transposed.inputs[0], "input of the convolution")
    return _Convolution(conv, x, weight, "none" if swish is None else "silu", state)


def _conv_weight(conv: ir.Node) -> ir.Value:
    """The stored weight [channels, 1, width]."""
    cast = produced_by(conv.inputs[1], "Cast")
    stored = conv.inputs[1] if cast is None else cast.inputs[0]
    shape = dims(stored) or ()
    is_weight = weight_tensor(stored) is not None and len(shape) == 3 and shape[1] == 1
    expect(is_weight and len(conv.inputs) == 2, "the convolution has a bias, or no weight for each channel")
    assert stored is not None
    return stored


def _present(concat: ir.Node, conv: ir.Node, history: int) -> ir.Value:
    """The last ``history`` inputs of the convolution, which the network keeps. Raises MismatchError."""
    others = [use.node for use in concat.outputs[0].uses() if use.node is not conv]
    expect([node.op_type for node in others] == ["Slice"], "the last inputs of the convolution are not kept")
    _, start, end, axis = (*others[0].inputs, None, None)[:4]
    is_end = integers(start) == [-history] and integers(axis) == [2] and (integers(end) or [0])[0] >= 1 << 31
    expect(is_end, "what the convolution keeps is not its last inputs")
    return others[0].outputs[0]


def _match_norm(value: ir.Value) -> _GatedNorm:
    """The norm of each head of ``value`` [batch, seq, features], times SiLU of a gate. Raises MismatchError."""
    nodes = []
    for op_type in ("Reshape", "RMSNormalization", "Reshape", "Flatten", "Gather", "Mul"):
        user = only_user(value)
        expect(user is not None and user.op_type == op_type, "its results are not normalised and gated")
        assert user is not None
        nodes.append(user)
        value = user.outputs[0]
    split, norm, merge, flatten, gather, mul = nodes
    shape, weight = integers(split.inputs[1]), norm.inputs[1]
    expect(weight_tensor(weight) is not None and attribute(norm, "axis", -1) in (-1, 3), "its norm has no weight")
    assert weight is not None
    is_by_head = shape is not None and len(shape) == 4 and shape[:2] == [0, 0] and dims(weight) == (shape[3],)
    is_merged = integers(merge.inputs[1]) == [0, 0, -1] and attribute(flatten, "axis", 1) == 2
    expect(is_by_head and is_merged and is_packing(gather), "the norm is not over the features of each head")
    gates = [value for value in mul.inputs if value is not gather.outputs[0]]
    swish = expect_node(gates[0] if gates else None, "Swish", "gate")
    expect(attribute(swish, "alpha", 1.0) == 1, "the activation of the gate is not SiLU")
    gate = swish.inputs[0]
    assert gate is not None
    expect(len(dims(gate) or ()) == 2, "the gate is not one of packed rows")
    return _GatedNorm(weight, float(attribute(norm, "epsilon", 1e-5)), gate, mul.outputs[0])


def _fuse_convolution(graph: ir.Graph, match: _Convolution) -> ir.Value:
    """Insert CausalConv; returns its packed results."""
    tensor = weight_tensor(match.weight)
    assert tensor is not None
    channels, _, width = extents(tensor)

    def load() -> NDArray:
        return tensor.numpy().reshape(channels, width)

    name = str(match.node.name)
    weight = add_initializer(graph, f"{name}.weight", lazy(load, tensor.dtype, (channels, width), [tensor]))
    y = value_of(f"{name}.packed", _FLOAT, [NUM_TOKENS, channels])
    attributes = {"activation": match.activation}
    _insert(graph, match.node, "CausalConv", {"x": match.x, "weight": weight}, y, match.state, attributes)
    return y


def _fuse_rule(graph: ir.Graph, rule: ir.Node, rows: list[ir.Value], state: _State) -> ir.Value:
    """Insert GatedDeltaRule with packed qkv, a and b; returns its packed results."""
    operands = dict(zip(("qkv", "a", "b", "a_log", "dt_bias"), [*rows, *rule.inputs[3:5]], strict=True))
    y = value_of(f"{rule.name}.packed", _FLOAT, [NUM_TOKENS, features_of(rule.outputs[0])])
    attributes = {name: attribute(rule, name) for name in ("num_key_heads", "scale", "norm_epsilon")}
    _insert(graph, rule, "GatedDeltaRule", operands, y, state, attributes)
    return y


def _insert(
    graph: ir.Graph,
    before: ir.Node,
    op_type: str,
    operands: Mapping[str, ir.Value | None],
    y: ir.Value,
    state: _State,
    attributes: Mapping[str, int | float | str],
) -> None:
    """Insert an operator whose state takes the place of an input and an output of the network."""
    number, shape = layer_of(state.past), [NUM_BLOCKS, *(dims(state.past) or ())[1:]]
    past, present = (value_of(f"{kind}.{number}", _FLOAT, shape) for kind in (state.kind, f"{state.kind}_out"))
    inputs = {**operands, state.kind: past, **{str(value.name): value for value in add_shared_inputs(graph)}}
    outputs = {"y": y, f"{state.kind}_out": present}
    node = fused_node(op_type, str(before.name), inputs, outputs, {**attributes, **_UNASSIGNED})
    graph.insert_before(before, node)
    graph.inputs[graph.inputs.index(state.past)] = past
    graph.outputs[graph.outputs.index(state.present)] = present


def _fuse_norm(graph: ir.Graph, rule: ir.Node, y: ir.Value, match: _GatedNorm) -> None:
    """Insert GatedRmsNorm in place of the layer's norm and its gate."""
    mul = match.output.producer()
    assert mul is not None
    output = value_of(f"{mul.name}.normed", _FLOAT, dims(y) or ())
    inputs = {"x": y, "gate": match.gate, "weight": match.weight}
    name = f"{site(rule, mul)}.norm"
    graph.insert_before(mul, fused_node("GatedRmsNorm", name, inputs, {"y": output}, {"epsilon": match.epsilon}))
    replace_value(match.output, output)


def _requires(graph: ir.Graph) -> Iterable[str]:
    if PADDED_ROWS not in {value.name for value in graph.inputs}:
        yield "padding is not removed yet"


GATED_DELTA_NET = GraphPass("gated_delta_net", _rewrite, _requires)
