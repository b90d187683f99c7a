"""A mixture of experts becomes Router, GroupedGatedLinear and GroupedLinear, which compute the chosen experts alone.

In the standard network (network/moe.py) all experts are computed, and the inner features of each are multiplied with
its share, which is zero for all but the chosen ones.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from trtllm_lite.builder.graph import (
    Dim,
    attribute,
    dims,
    fused_node,
    nodes_of,
    only_user,
    produced_by,
    replace_value,
    scalar_constant,
    site,
    value_of,
    weight_tensor,
)
from trtllm_lite.builder.passes.activations import OP_TYPES, activation_of, describe
from trtllm_lite.builder.passes.attention_pattern import MismatchError, expect
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.builder.passes.routing import Routing, match_routing, node_of
from trtllm_lite.network.tensors import add_initializer, extents, stack

_FLOAT, _INT32 = ir.DataType.FLOAT, ir.DataType.INT32


@dataclass(frozen=True)
class _Experts:
    """The weights [experts, inner, hidden] and [experts, hidden, inner], and the ``result`` of all."""

    x: ir.Value
    gate: ir.TensorProtocol
    up: ir.TensorProtocol
    down: ir.TensorProtocol
    activation: str
    result: ir.Value


def _rewrite(graph: ir.Graph) -> list[Decision]:
    decisions = []
    for scatter in nodes_of(graph, "ScatterElements"):
        if produced_by(scatter.inputs[0], "Add"):  # minus infinity for groups that a router leaves out
            continue
        name = site(scatter)
        try:
            routing, experts = match_routing(scatter), _match_experts(scatter)
            expect(experts.x is routing.x, "the router and the experts read different inputs")
        except MismatchError as mismatch:
            decisions.append(Decision(name, False, str(mismatch)))
            continue
        name = site(scatter, *(use.node for use in scatter.outputs[0].uses()))
        _fuse(graph, routing, experts, name)
        decisions.append(Decision(name, True))
    return decisions


def _match_experts(scatter: ir.Node) -> _Experts:
    spread = _reader(scatter.outputs[0], "Gather", "the shares are not spread over the features of the experts")
    weighted = _reader(spread.outputs[0], "Mul", "the shares are not multiplied with the features of the experts")
    down = _reader(weighted.outputs[0], "MatMul", "the weighted features are not multiplied with a matrix")
    flat = node_of(down.inputs[1], "Reshape", "the matrix behind the experts is not that of all of them")
    by_expert = node_of(flat.inputs[0], "Transpose", "the matrix behind the experts is not transposed")
    expect(list(attribute(by_expert, "perm", ())) == [0, 2, 1], "the matrix behind the experts has another order")
    gated = node_of(_other(weighted, spread.outputs[0]), "Mul", "the experts are no gated MLPs")
    function = next((node for value in gated.inputs if (node := produced_by(value, *OP_TYPES))), None)
    expect(function is not None, "the experts have no activation function")
    assert function is not None
    name = activation_of(function)
    expect(name is not None, f"the gate goes through {describe(function)}, which no fused operator computes")
    x, gate = _match_wide(function.inputs[0])
    other_x, up = _match_wide(_other(gated, function.outputs[0]))
    expect(x is other_x, "gate and up read different inputs")
    matrix = _weight(by_expert.inputs[0])
    experts, hidden, inner = extents(matrix)
    fits = extents(gate) == extents(up) == (experts, inner, hidden)
    expect(fits, "the matrices of the experts differ in shape")
    expect(gate.dtype == up.dtype, "the matrices of gate and up differ in dtype")
    expect(_is_expert_of_feature(spread, experts, inner), "the shares are spread in another way")
    return _Experts(x, gate, up, matrix, name or "", down.outputs[0])


def _match_wide(value: ir.Value | None) -> tuple[ir.Value, ir.TensorProtocol]:
    """The rows and the matrices [experts, inner, hidden] of which ``value`` is the product for all experts."""
    product = node_of(value, "MatMul", "the features of the experts are no product")
    transpose = node_of(product.inputs[1], "Transpose", "the matrix of the experts is not transposed")
    expect(list(attribute(transpose, "perm", (1, 0))) == [1, 0], "the matrix of the experts has another order")
    flat = node_of(transpose.inputs[0], "Reshape", "the matrix of the experts is not that of all of them")
    assert product.inputs[0] is not None
    return product.inputs[0], _weight(flat.inputs[0])


def _weight(value: ir.Value | None) -> ir.TensorProtocol:
    cast = produced_by(value, "Cast")
    tensor = weight_tensor(value if cast is None else cast.inputs[0])
    expect(tensor is not None and len(tensor.shape) == 3, "the experts have no weights of their own")
    assert tensor is not None
    return tensor


def _is_expert_of_feature(spread: ir.Node, experts: int, inner: int) -> bool:
    """Whether the shares are taken by feature // inner."""
    ratio = produced_by(spread.inputs[1], "Div")
    features = None if ratio is None else produced_by(ratio.inputs[0], "Range")
    if ratio is None or features is None or attribute(spread, "axis", 0) != -1:
        return False
    numbers = [scalar_constant(value) for value in (*features.inputs, ratio.inputs[1])]
    return numbers == [0, experts * inner, 1, inner]


def _reader(value: ir.Value, op_type: str, problem: str) -> ir.Node:
    node = only_user(value)
    expect(node is not None and node.op_type == op_type and node.domain == "", problem)
    assert node is not None
    return node


def _other(node: ir.Node, value: ir.Value) -> ir.Value | None:
    return next((operand for operand in node.inputs if operand is not value), None)


def _fuse(graph: ir.Graph, routing: Routing, experts: _Experts, name: str) -> None:
    num_experts, inner, hidden = extents(experts.gate)
    rows = (dims(routing.x) or (None,))[0]
    gate_up = add_initializer(graph, f"{name}.experts.gate_up_proj", stack([experts.gate, experts.up], axis=1))
    down = add_initializer(graph, f"{name}.experts.down_proj", experts.down)

    def new(what: str, *features: Dim, dtype: ir.DataType = _FLOAT) -> ir.Value:
        return value_of(f"{name}.{what}", dtype, [rows, *features])

    chosen = {
        "ids": new("router.ids", routing.top_k, dtype=_INT32),
        "shares": new("router.shares", routing.top_k),
        "scores": new("router.scores", num_experts),
    }
    gated, y = new("experts.gated", routing.top_k, inner), new("experts.y", hidden)

    def room(product: str, features: int) -> dict[str, ir.Value]:
        path = f"experts.{product}"
        return {"gathered": new(f"{path}.gathered", features), "members": new(f"{path}.members", dtype=_INT32)}

    nodes = [
        fused_node(
            "Router",
            f"{name}.router",
            {"x": routing.x, "weight": routing.weight, "correction": routing.correction},
            chosen,
            routing.attributes,
        ),
        fused_node(
            "GroupedGatedLinear",
            f"{name}.experts.gate_up_proj",
            {"x": routing.x, "ids": chosen["ids"], "weight": gate_up},
            {"y": gated, **room("gate_up_proj", hidden)},
            {"activation": experts.activation, "moe_tp_size": 1},
        ),
        fused_node(
            "GroupedLinear",
            f"{name}.experts.down_proj",
            {"x": gated, "ids": chosen["ids"], "shares": chosen["shares"], "weight": down},
            {"y": y, **room("down_proj", inner)},
            {"moe_tp_size": 1},
        ),
    ]
    producer = experts.result.producer()
    assert producer is not None
    graph.insert_before(producer, nodes)
    replace_value(experts.result, y)


def _requires(graph: ir.Graph) -> Iterable[str]:
    if any(value.name == "input_ids" for value in graph.inputs):
        yield "padding is not removed yet"


MOE = GraphPass("moe", _rewrite, _requires)
