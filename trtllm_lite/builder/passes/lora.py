"""Products that adapters may change get a LowRank, whose result they add before their activation.

The pass runs behind the others, on the products that they made: where a product computes several projections, its
LowRank has as many parts. Projections are known by their names in the standard network.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from trtllm_lite.builder.graph import (
    attribute,
    dims,
    fused_by,
    fused_node,
    nodes_of,
    operands,
    replace_value,
    value_of,
)
from trtllm_lite.builder.passes.contract import Decision, GraphPass
from trtllm_lite.builder.passes.last_token_gather import NUM_LOGITS
from trtllm_lite.errors import BuildError
from trtllm_lite.plugins.schema import DOMAIN
from trtllm_lite.vocabulary import LOGITS_INDICES

_PROJECTION = re.compile(r"layers\.\d+\.\w+\.(q|k|v|o|gate|up|down)_proj")
_MERGED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_MAX_PARTS = 3


@dataclass(frozen=True)
class Projection:
    """A linear layer that adapters may change: its name in the standard network, and its outputs."""

    name: str
    out_features: int


def projections_of(network: ir.Graph) -> dict[str, Projection]:
    """The projections of the standard network that adapters may change, by name."""
    found = {}
    for node in nodes_of(network, "MatMul"):
        width = (dims(node.outputs[0]) or (None,))[-1]
        if isinstance(width, int) and _PROJECTION.fullmatch(str(node.name)):
            found[str(node.name)] = Projection(str(node.name), width)
    return found


def add_low_rank(graph: ir.Graph, projections: Mapping[str, Projection], max_rank: int) -> tuple[str, ...]:
    """Put a LowRank before each product of ``projections``; returns their names, by number.

    Raises BuildError if a projection is in no product.
    """
    names: list[str] = []
    for node in [node for node in graph if node.domain == DOMAIN and node.op_type in ("Linear", "GatedLinear")]:
        parts = _parts(str(node.name), projections)
        if parts:
            _add(graph, node, parts, len(names), max_rank)
            names += [part.name for part in parts]
    missing = sorted(projections.keys() - set(names))
    if missing or not names:
        raise BuildError(
            f"max_lora_rank is given, and adapters cannot reach {', '.join(missing) or 'any projection'} of this "
            "network: leave it out, and merge the adapter into the model before `trtllm-lite convert`"
        )
    return tuple(names)


def lora_pass(projections: Mapping[str, Projection], max_rank: int, names: list[str]) -> GraphPass:
    """:func:`add_low_rank` as a pass, which appends to ``names``."""

    def rewrite(graph: ir.Graph) -> list[Decision]:
        names.extend(add_low_rank(graph, projections, max_rank))
        return [Decision(name, True) for name in names]

    return GraphPass("lora", rewrite)


def _parts(product: str, projections: Mapping[str, Projection]) -> list[Projection]:
    """The projections that a product computes, in the order of its outputs."""
    layer, _, last = product.rpartition(".")
    names = [f"{layer}.{part}" for part in _MERGED.get(last, (last,))]
    return [projections[name] for name in names if name in projections]


def _add(graph: ir.Graph, product: ir.Node, parts: list[Projection], first: int, max_rank: int) -> None:
    given = operands(product)
    x = _unrounded(given["x"])
    rows, name = (dims(x) or ("",))[0] or "", f"{product.name}.lora"
    ends = [sum(part.out_features for part in parts[: end + 1]) for end in range(_MAX_PARTS)]
    inputs = {"x": x}
    if rows == NUM_LOGITS:
        inputs["logits_indices"] = next(value for value in graph.inputs if value.name == LOGITS_INDICES)
    outputs = {
        "y": value_of(f"{name}.added", ir.DataType.FLOAT, [rows, ends[-1]]),
        "projected": value_of(f"{name}.projected", ir.DataType.FLOAT, [rows, len(parts) * max_rank]),
    }
    numbers = {"first_part": first, "num_parts": len(parts), "max_rank": max_rank}
    numbers |= {"first_end": ends[0], "second_end": ends[1], "third_end": ends[2]}
    low_rank = fused_node("LowRank", name, inputs, outputs, numbers)
    y = value_of(f"{product.name}.adapted", ir.DataType.FLOAT, dims(product.outputs[0]) or ())
    attributes = {"activation": attribute(product, "activation")}
    given["added"] = low_rank.outputs[0]
    adapted = fused_node(product.op_type, str(product.name), given, {"y": y}, attributes)
    graph.insert_before(product, [low_rank, adapted])
    replace_value(product.outputs[0], y)


def _unrounded(x: ir.Value) -> ir.Value:
    """What a product multiplies, before it is rounded to eight bits or its columns are put into another order."""
    for op_type in ("QuantizeRows", "GatherColumns"):
        node = fused_by(x, op_type)
        if node is not None:
            x = operands(node)["x"]
    return x
