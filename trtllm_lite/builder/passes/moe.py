"""A mixture of experts becomes Router, GroupedGatedLinear and GroupedLinear, which compute the chosen experts alone.

In the standard network (network/moe.py) all experts are computed, and the inner features of each are multiplied with
its share, which is zero for all but the chosen ones.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from trtllm_lite.builder.graph import (
    Dim,
    attribute,
    dims,
    features_of,
    fused_node,
    integers,
    nodes_of,
    produced_by,
    replace_value,
    scalar_constant,
    site,
    value_of,
    weight_tensor,
)
from trtllm_lite.builder.passes.attention_pattern import MismatchError, expect
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.builder.passes.experts import Experts, match_experts
from trtllm_lite.network.tensors import add_initializer

_FLOAT, _INT32 = ir.DataType.FLOAT, ir.DataType.INT32


@dataclass(frozen=True)
class _Routing:
    """What chooses: ``x`` @ ``weight`` [hidden, experts] + ``bias``: ``top_k`` are kept as ``scoring`` says."""

    x: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    top_k: int
    scoring: str


def _rewrite(graph: ir.Graph) -> list[Decision]:
    decisions = []
    for scatter in nodes_of(graph, "ScatterElements"):
        name = site(scatter)
        try:
            routing, experts = _match_routing(scatter), match_experts(scatter)
            expect(experts.x is routing.x, "the router and the experts read different inputs")
        except MismatchError as mismatch:
            decisions.append(Decision(name, False, str(mismatch)))
            continue
        name = site(scatter, *(use.node for use in scatter.outputs[0].uses()))
        _fuse(graph, routing, experts, name)
        decisions.append(Decision(name, True))
    return decisions


def _match_routing(scatter: ir.Node) -> _Routing:
    zeros, ids, shares = scatter.inputs
    top_k = _node(ids, "TopK", "the experts are not the largest of their scores")
    of_last = attribute(scatter, "axis", 0) == -1 and attribute(top_k, "axis", -1) == -1
    expect(of_last and attribute(scatter, "reduction", "none") == "none", "shares are not placed by expert")
    expect(ids is top_k.outputs[1] and attribute(top_k, "largest", 1) == 1, "the smallest scores are chosen")
    expect(_is_zero(zeros), "experts that are not chosen have shares")
    count = scalar_constant(top_k.inputs[1])
    expect(isinstance(count, int), "the number of experts of a token is not fixed")
    assert isinstance(count, int)
    scoring, scores = _match_scoring(top_k, shares)
    add = produced_by(scores, "Add")
    bias = None if add is None else add.inputs[1]
    product = _node(scores if add is None else add.inputs[0], "MatMul", "the scores are no product")
    x, weight = product.inputs
    expect(_is_plain(weight) and (add is None or _is_plain(bias)), "the router's weight is not in float32")
    expect(len(dims(x) or ()) == 2, "the router does not read packed rows")
    assert x is not None
    assert weight is not None
    return _Routing(x, weight, bias, count, scoring)


def _match_scoring(top_k: ir.Node, shares: ir.Value | None) -> tuple[str, ir.Value | None]:
    """How shares come from scores, and the scores."""
    values, scores = top_k.outputs[0], top_k.inputs[0]
    before, after, ratio = (
        produced_by(value, op_type) for value, op_type in ((scores, "Softmax"), (shares, "Softmax"), (shares, "Div"))
    )
    for softmax in (before, after):
        expect(softmax is None or attribute(softmax, "axis", -1) == -1, "the softmax is not over experts")
    if before is None:
        expect(after is not None and after.inputs[0] is values, "the shares are no softmax of the chosen scores")
        return "softmax_of_chosen", scores
    if shares is values:
        return "softmax", before.inputs[0]
    total = None if ratio is None else produced_by(ratio.inputs[1], "ReduceSum")
    is_normalized = ratio is not None and total is not None and ratio.inputs[0] is total.inputs[0] is values
    expect(is_normalized, "the shares are not the chosen ones divided by their sum")
    assert total is not None
    expect(integers(total.inputs[1]) == [-1], "the shares are not divided by the sum over experts")
    return "normalized_softmax", before.inputs[0]


def _is_plain(value: ir.Value | None) -> bool:
    """Whether ``value`` is a weight in float32."""
    return weight_tensor(value) is not None and value is not None and value.dtype == _FLOAT


def _is_zero(value: ir.Value | None) -> bool:
    """Whether ``value`` is (x < x) as numbers."""
    cast = produced_by(value, "Cast")
    less = None if cast is None else produced_by(cast.inputs[0], "Less")
    return less is not None and less.inputs[0] is less.inputs[1]


def _node(value: ir.Value | None, op_type: str, problem: str) -> ir.Node:
    node = produced_by(value, op_type)
    expect(node is not None, problem)
    assert node is not None
    return node


def _fuse(graph: ir.Graph, routing: _Routing, experts: Experts, name: str) -> None:
    rows, hidden = (dims(routing.x) or (None,))[0], features_of(routing.x)

    def weights(product: str, tensors: Mapping[str, ir.TensorProtocol]) -> dict[str, ir.Value]:
        path = f"{name}.experts.{product}"
        return {operand: add_initializer(graph, f"{path}.{operand}", tensor) for operand, tensor in tensors.items()}

    def new(what: str, *features: Dim, dtype: ir.DataType = _FLOAT) -> ir.Value:
        return value_of(f"{name}.{what}", dtype, [rows, *features])

    chosen = {
        "ids": new("router.ids", routing.top_k, dtype=_INT32),
        "shares": new("router.shares", routing.top_k),
        "scores": new("router.scores", experts.num_experts),
    }
    gated, y = new("experts.gated", routing.top_k, experts.inner), new("experts.y", hidden)

    def room(product: str, features: int) -> dict[str, ir.Value]:
        path = f"experts.{product}"
        return {"gathered": new(f"{path}.gathered", features), "members": new(f"{path}.members", dtype=_INT32)}

    nodes = [
        fused_node(
            "Router",
            f"{name}.router",
            {"x": routing.x, "weight": routing.weight, "bias": routing.bias},
            chosen,
            {"top_k": routing.top_k, "scoring": routing.scoring},
        ),
        fused_node(
            "GroupedGatedLinear",
            f"{name}.experts.gate_up_proj",
            {"x": routing.x, "ids": chosen["ids"], **weights("gate_up_proj", experts.gate_up)},
            {"y": gated, **room("gate_up_proj", hidden)},
            {"activation": experts.activation, "moe_tp_size": 1},
        ),
        fused_node(
            "GroupedLinear",
            f"{name}.experts.down_proj",
            {"x": gated, "ids": chosen["ids"], "shares": chosen["shares"], **weights("down_proj", experts.down)},
            {"y": y, **room("down_proj", experts.inner)},
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
