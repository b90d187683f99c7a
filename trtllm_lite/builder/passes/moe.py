"""Fuses a mixture of experts into Router, GroupedGatedLinear and GroupedLinear, which compute only the chosen experts.

In the standard network (network/moe.py) all experts are computed, and the inner features of each are multiplied with
its share, which is zero for all but the chosen ones.
"""

from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from trtllm_lite.builder.constraints import implied_extents
from trtllm_lite.builder.graph import (
    Dim,
    dims,
    features_of,
    fused_node,
    nodes_of,
    produced_by,
    replace_value,
    site,
    value_of,
)
from trtllm_lite.builder.passes.attention_pattern import MismatchError
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.builder.passes.experts import Experts, match_experts
from trtllm_lite.builder.passes.routing import Routing, match_routing
from trtllm_lite.network.tensors import add_initializer
from trtllm_lite.plugins.schema import all_schemas

_FLOAT, _INT32 = ir.DataType.FLOAT, ir.DataType.INT32


def _rewrite(graph: ir.Graph) -> Iterator[Decision]:
    for scatter in nodes_of(graph, "ScatterElements"):
        if any(produced_by(value, "Add") for value in (scatter.inputs[0], scatter.inputs[2])):
            continue  # writes minus infinity for experts that are left out
        name = site(scatter)
        try:
            routing, experts = match_routing(scatter), match_experts(scatter)
        except MismatchError as mismatch:
            yield Decision(name, False, str(mismatch))
            continue
        name = site(scatter, *(use.node for use in scatter.outputs[0].uses()))
        _fuse(graph, routing, experts, name)
        yield Decision(name, True)


def _fuse(graph: ir.Graph, routing: Routing, experts: Experts, name: str) -> None:
    rows, features = (dims(routing.x) or (None,))[0], features_of(experts.x)

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
    owned = {"num_shared": 0, "shared_gate": 0, "local_experts": experts.num_experts, "moe_tp_size": 1}
    tallied = implied_extents(all_schemas()["Router"], owned)["tallied"]
    tally = value_of(f"{name}.router.tally", ir.DataType.INT64, [tallied])
    gated, y = new("experts.gated", routing.top_k, experts.inner), new("experts.y", features)

    def room(product: str, width: int) -> dict[str, ir.Value]:
        path = f"experts.{product}"
        return {"gathered": new(f"{path}.gathered", width), "members": new(f"{path}.members", dtype=_INT32)}

    before, behind = ("input_shares", None) if experts.scale_inputs else (None, "shares")
    nodes = [
        fused_node(
            "Router",
            f"{name}.router",
            {
                **{"x": routing.x, "weight": routing.weight, "correction": routing.correction, "bias": routing.bias},
                "factors": routing.factors,
            },
            {**chosen, "tally": tally},
            {**routing.attributes, **owned},
        ),
        fused_node(
            "GroupedGatedLinear",
            f"{name}.experts.gate_up_proj",
            {
                **{"x": experts.x, "ids": chosen["ids"], **weights("gate_up_proj", experts.gate_up)},
                **({before: chosen["shares"]} if before else {}),
            },
            {"y": gated, **room("gate_up_proj", features)},
            {"activation": experts.activation, "moe_tp_size": 1, "self_gated": int(experts.self_gated)},
        ),
        fused_node(
            "GroupedLinear",
            f"{name}.experts.down_proj",
            {
                **{"x": gated, "ids": chosen["ids"], **weights("down_proj", experts.down)},
                **({behind: chosen["shares"]} if behind else {}),
            },
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
