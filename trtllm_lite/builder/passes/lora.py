"""Adds a LowRank to each product that adapters may change; the product adds its result before the activation.

The pass runs after the others, on the products that they made: where a product computes several projections, its
LowRank has as many parts. A projection is identified by its name in the standard network, which maps to a module name
of adapters.
"""

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
from trtllm_lite.common.vocabulary import LOGITS_INDICES
from trtllm_lite.engine.records import from_json, parse_json
from trtllm_lite.errors import BuildError, EngineError, shown
from trtllm_lite.network.graph import MODULES
from trtllm_lite.network.module_rows import ModuleRows
from trtllm_lite.plugins.schema import DOMAIN

_LAYERS = "layers."  # prefix of the names of products in layers
_MERGED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_MAX_PARTS = 3


@dataclass(frozen=True)
class Projection:
    """A linear layer that adapters may change: its name in the standard network, its outputs, and their module."""

    name: str
    out_features: int
    rows: ModuleRows


def projections_of(network: ir.Model) -> dict[str, Projection]:
    """The projections of the standard network that adapters may change, by name.

    Raises BuildError for a checkpoint that does not know the model's modules, EngineError for one that is damaged.
    """
    if MODULES not in network.metadata_props:
        raise BuildError(
            "max_lora_rank is given, and this checkpoint, of an older trtllm_lite, does not map its layers to "
            "the modules that adapters name: convert the model again"
        )
    where = f"{MODULES} of network.onnx"
    modules = parse_json(network.metadata_props[MODULES], where)
    if not isinstance(modules, dict):
        raise EngineError(f"{where}: expected an object, found {shown(modules)}: convert the model again")
    found = {}
    for node in nodes_of(network.graph, "MatMul"):
        name, width = str(node.name), (dims(node.outputs[0]) or (None,))[-1]
        if isinstance(width, int) and name.startswith(_LAYERS) and name in modules:
            rows = from_json(ModuleRows, modules[name], f"{where}: {shown(name)}")
            found[name] = Projection(name, width, rows)
    return found


def add_low_rank(graph: ir.Graph, projections: Mapping[str, Projection], max_rank: int) -> list[Projection]:
    """Put a LowRank before each product of ``projections``; returns them by number.

    Raises BuildError if a projection is in no product.
    """
    found: list[Projection] = []
    for node in [node for node in graph if node.domain == DOMAIN and node.op_type in ("Linear", "GatedLinear")]:
        parts = _parts(str(node.name), projections)
        if parts:
            _add(graph, node, parts, len(found), max_rank)
            found += parts
    missing = sorted(projections.keys() - {one.name for one in found})
    if missing or not found:
        raise BuildError(
            f"max_lora_rank is given, and adapters cannot reach {', '.join(missing) or 'any projection'} of this "
            "network: leave max_lora_rank out, and merge the adapter into the model before `trtllm-lite convert`"
        )
    return found


def lora_pass(projections: Mapping[str, Projection], max_rank: int, found: list[Projection]) -> GraphPass:
    """Return :func:`add_low_rank` as a pass, which appends to ``found``."""

    def rewrite(graph: ir.Graph) -> list[Decision]:
        found.extend(add_low_rank(graph, projections, max_rank))
        return [Decision(one.name, True) for one in found]

    return GraphPass("lora", rewrite)


def _parts(product: str, projections: Mapping[str, Projection]) -> list[Projection]:
    """The projections that a product computes, in the order of its outputs; none unless adapters may change all."""
    if product in projections:
        return [projections[product]]
    layer, _, last = product.rpartition(".")
    names = [f"{layer}.{part}" for part in _MERGED.get(last, ())]
    return [projections[name] for name in names if projections.keys() >= set(names)]


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
    """The input of a product before it is quantized or its columns are reordered."""
    for op_type in ("QuantizeRows", "GatherColumns"):
        node = fused_by(x, op_type)
        if node is not None:
            x = operands(node)["x"]
    return x
