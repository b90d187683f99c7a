"""Fuses the operators of Gated DeltaNet (network/gated_delta_net.py) behind its convolution into GatedDeltaRule and
GatedRmsNorm.

unpacked rows -> call of the rule -> Reshape to heads -> RMSNormalization -> Reshape -> pack -> Mul with the gate, after
Swish or Sigmoid

Nothing of the layer reads padded values any more.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

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
    is_packing,
    match_unpacked,
)
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.builder.passes.recurrent_pattern import extent_of, insert_recurrent, layout_of, match_state
from trtllm_lite.builder.passes.remove_padding import PADDED_ROWS
from trtllm_lite.network.functions import FUNCTIONS, GATED_DELTA_RULE

_ROWS = ("qkv", "a", "b")


@dataclass(frozen=True)
class _GatedNorm:
    """The norm of groups of features, and the packed ``gate``; ``output`` are packed rows."""

    weight: ir.Value
    epsilon: float
    gate: ir.Value
    activation: str  # of the gate
    output: ir.Value


def _rewrite(graph: ir.Graph) -> Iterator[Decision]:
    for rule in nodes_of(graph, GATED_DELTA_RULE, FUNCTIONS):
        try:
            norm = _match_norm(rule.outputs[0])
            rows = [match_unpacked(rule.inputs[number], name) for number, name in enumerate(_ROWS)]
            state = match_state("recurrent_state", rule.inputs[5], rule.outputs[1])
        except MismatchError as mismatch:
            yield Decision(site(rule), False, str(mismatch))
            continue
        operands = dict(zip((*_ROWS, "a_log", "dt_bias"), [*rows, *rule.inputs[3:5]], strict=True))
        heads = extent_of(state.past, 1)
        layout = layout_of(state, features_of(rows[1]) // heads)
        attributes = {name: attribute(rule, name) for name in ("num_key_heads", "scale", "norm_epsilon")}
        attributes |= layout.attributes
        form = (heads, layout.size)
        y = insert_recurrent(graph, rule, "GatedDeltaRule", operands, state, form, attributes)
        _fuse_norm(graph, rule, y, norm)
        yield Decision(site(rule), True)


def _match_norm(value: ir.Value) -> _GatedNorm:
    """The norm of each head of ``value`` [batch, seq, features], times a gate. Raises MismatchError."""
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
    activated = produced_by(gates[0] if gates else None, "Swish", "Sigmoid")
    is_known = activated is not None and attribute(activated, "alpha", 1.0) == 1
    expect(is_known, "the activation of the gate is neither SiLU nor sigmoid")
    assert activated is not None
    gate = activated.inputs[0]
    assert gate is not None
    expect(len(dims(gate) or ()) == 2, "the gate is not one of packed rows")
    activation = "silu" if activated.op_type == "Swish" else "sigmoid"
    return _GatedNorm(weight, float(attribute(norm, "epsilon", 1e-5)), gate, activation, mul.outputs[0])


def _fuse_norm(graph: ir.Graph, rule: ir.Node, y: ir.Value, match: _GatedNorm) -> None:
    """Insert GatedRmsNorm in place of the layer's norm and its gate."""
    mul = match.output.producer()
    assert mul is not None
    output = value_of(f"{mul.name}.normed", ir.DataType.FLOAT, dims(y) or ())
    inputs = {"x": y, "gate": match.gate, "weight": match.weight}
    name = f"{site(rule, mul)}.norm"
    attributes: dict[str, int | float | str] = {"epsilon": match.epsilon, "activation": match.activation}
    graph.insert_before(mul, fused_node("GatedRmsNorm", name, inputs, {"y": output}, attributes))
    replace_value(match.output, output)


def _requires(graph: ir.Graph) -> Iterable[str]:
    if PADDED_ROWS not in {value.name for value in graph.inputs}:
        yield "padding is not removed yet"


GATED_DELTA_NET = GraphPass("gated_delta_net", _rewrite, _requires)
