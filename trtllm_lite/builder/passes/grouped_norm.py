"""Fuses norms of groups of features (network/mamba2.py, network/layer_inputs.py) into GroupedRmsNorm.

The norm: packed rows -> unpack -> Reshape to groups -> RMSNormalization -> Reshape -> pack, perhaps -> Mul with a
weight for each feature. The gate, if there is one: Mul with Swish, before the norm or after it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trtllm_lite.builder.graph import (
    attribute,
    dims,
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
from trtllm_lite.builder.passes.attention_pattern import MismatchError, expect, is_packing, match_unpacked
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.builder.passes.remove_padding import PADDED_ROWS
from trtllm_lite.network.tensors import add_initializer, lazy

_FLOAT = ir.DataType.FLOAT


@dataclass(frozen=True)
class _Norm:
    """The norm of packed ``x`` in groups, with ``weights`` of a group's features, perhaps of all; ``last`` ends it."""

    x: ir.Value
    weights: tuple[ir.Value, ...]
    groups: int
    size: int
    epsilon: float
    last: ir.Node


@dataclass(frozen=True)
class _Gate:
    """What is normalised, ``x``, and what SiLU is applied to, if there is a gate; ``last`` makes the results."""

    x: ir.Value
    gate: ir.Value | None
    order: str
    last: ir.Node


def _rewrite(graph: ir.Graph) -> Iterator[Decision]:
    for node in nodes_of(graph, "RMSNormalization"):
        after = only_user(node.outputs[0])
        if produced_by(node.inputs[0], "Reshape") is None or after is None or after.op_type != "Reshape":
            continue  # a norm of all features, or of the heads of attention
        try:
            norm = _match_norm(node, after)
            gate = _match_gate(norm)
        except MismatchError as mismatch:
            yield Decision(site(node), False, str(mismatch))
            continue
        last, name = gate.last, f"{site(node, gate.last)}.norm"
        output = value_of(f"{last.name}.normed", _FLOAT, dims(last.outputs[0]) or ())
        inputs = {"x": gate.x, "gate": gate.gate, "weight": _matrix(graph, norm)}
        attributes: dict[str, int | float | str] = {"order": gate.order, "epsilon": norm.epsilon}
        graph.insert_before(last, fused_node("GroupedRmsNorm", name, inputs, {"y": output}, attributes))
        replace_value(last.outputs[0], output)
        yield Decision(name, True)


def _match_norm(norm: ir.Node, merge: ir.Node) -> _Norm:
    """The norm and the Mul behind it, if there is one, after the Reshape ``merge``. Raises MismatchError."""
    split = produced_by(norm.inputs[0], "Reshape")
    assert split is not None
    shape, of_group = integers(split.inputs[1]), norm.inputs[1]
    nodes, value = [], merge.outputs[0]
    for op_type in ("Flatten", "Gather"):
        user = only_user(value)
        expect(user is not None and user.op_type == op_type, "the norm is not over groups of features")
        assert user is not None
        nodes.append(user)
        value = user.outputs[0]
    flatten, gather = nodes
    is_merged = integers(merge.inputs[1]) == [0, 0, -1] and attribute(flatten, "axis", 1) == 2 and is_packing(gather)
    is_split = shape is not None and len(shape) == 4 and shape[:2] == [0, 0] and min(shape[2:]) > 0
    expect(is_merged and is_split and attribute(norm, "axis", -1) in (-1, 3), "the norm is not over groups of features")
    assert shape is not None
    groups, size = shape[2:]
    is_vector = weight_tensor(of_group) is not None and dims(of_group) == (size,)
    expect(is_vector, "the features of a group have no weights")
    assert of_group is not None
    x, epsilon = match_unpacked(split.inputs[0], "input of the norm"), float(attribute(norm, "epsilon", 1e-5))
    mul = only_user(value)
    of_all = next((operand for operand in mul.inputs if operand is not value), None) if mul is not None else None
    if mul is None or mul.op_type != "Mul" or weight_tensor(of_all) is None or dims(of_all) != (groups * size,):
        return _Norm(x, (of_group,), groups, size, epsilon, gather)
    assert of_all is not None
    return _Norm(x, (of_group, of_all), groups, size, epsilon, mul)


def _match_gate(norm: _Norm) -> _Gate:
    """The gate of ``norm``, which multiplies before it or after it, or none."""
    before, after = produced_by(norm.x, "Mul"), only_user(norm.last.outputs[0])
    if before is not None:
        for x, gate in (before.inputs, reversed(before.inputs)):
            if x is not None and (source := _gate_source(gate)) is not None:
                return _Gate(x, source, "gate_first", norm.last)
    if after is not None and after.op_type == "Mul":
        gates = [_gate_source(value) for value in after.inputs if value is not norm.last.outputs[0]]
        if gates and gates[0] is not None:
            return _Gate(norm.x, gates[0], "gate_last", after)
    return _Gate(norm.x, None, "gate_last", norm.last)


def _gate_source(value: ir.Value | None) -> ir.Value | None:
    """The packed rows whose SiLU is ``value``, if it is that."""
    swish = produced_by(value, "Swish")
    return swish.inputs[0] if swish is not None and attribute(swish, "alpha", 1.0) == 1 else None


def _matrix(graph: ir.Graph, norm: _Norm) -> ir.Value:
    """The weights of all features as a matrix [groups, size]."""
    tensors = [tensor for value in norm.weights if (tensor := weight_tensor(value)) is not None]

    def load() -> NDArray:
        product = np.ones((norm.groups, norm.size), np.float32)
        for tensor in tensors:
            product *= tensor.numpy().reshape(-1, norm.size)
        return product

    return add_initializer(graph, f"{norm.last.name}.matrix", lazy(load, _FLOAT, (norm.groups, norm.size), tensors))


def _requires(graph: ir.Graph) -> Iterable[str]:
    if PADDED_ROWS not in {value.name for value in graph.inputs}:
        yield "padding is not removed yet"


GROUPED_NORM = GraphPass("grouped_norm", _rewrite, _requires)
