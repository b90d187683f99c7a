"""Splits a fused network into the stages of a pipeline, each of which computes consecutive layers.

A cut lies between two operators. Only the residual stream crosses it, so that few bytes are sent. The next stage
recomputes its first norm, and values that depend on positions alone (rotary tables). Stages cost about the same: the
cost of an operator is the bytes of weights that a decode step reads: one row of an embedding, but the whole LM head.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, pairwise

import onnx_ir as ir

from trtllm_lite.builder.cache_groups import caches_layer, caches_of, layers_of
from trtllm_lite.builder.graph import (
    aliases_of,
    attribute,
    dims,
    fused_node,
    is_cache,
    operands,
    remove_dead,
    remove_unused_inputs,
    results,
    value_of,
    weight_tensor,
)
from trtllm_lite.builder.passes.remove_padding import NUM_TOKENS, POSITION_IDS
from trtllm_lite.common.vocabulary import STATE, STEP_INPUTS, num_bytes
from trtllm_lite.engine.manifest import CacheGroup
from trtllm_lite.errors import BuildError
from trtllm_lite.network.dtypes import DTYPE_NAMES
from trtllm_lite.network.tensors import extents

_LOOKED_UP = ("Embedding", "PositionEmbedding")  # operators that read a row of their table for each token
_MOST_REPEATED = 1 << 16  # bytes of weights of operators that several stages repeat
_MOST_NAMED = 8


@dataclass(frozen=True)
class Stage:
    """A part of a network. ``cache_groups`` has all groups of the network, each with this stage's layers."""

    graph: ir.Graph
    cache_groups: tuple[CacheGroup, ...]


def split(graph: ir.Graph, cache_groups: tuple[CacheGroup, ...], pp_size: int) -> list[Stage]:
    """Split ``graph``, which holds fused operators only and is left unchanged, into ``pp_size`` stages.

    Values that a stage receives are inputs of its graph, named like the outputs of the previous stage. Raises
    BuildError if there are too few places to cut.
    """
    network = _Network(graph)
    bounds = [0, *_choose_cuts(network, pp_size), len(network.nodes)]
    return [_stage(network, cache_groups, begin, end) for begin, end in pairwise(bounds)]


def received(graph: ir.Graph) -> list[ir.Value]:
    """The inputs of a stage's graph that the previous stage computes, in the order of ``graph.inputs``."""
    step_inputs = {step_input.name for step_input in STEP_INPUTS}
    return [value for value in graph.inputs if value.name not in step_inputs and not is_cache(value)]


def decode_bytes(node: ir.Node) -> int:
    """The bytes of weights that ``node`` reads for a token."""
    total = 0
    for value in node.inputs:
        tensor = weight_tensor(value)
        if tensor is not None:
            shape = extents(tensor)
            read = shape[1:] if node.op_type in _LOOKED_UP and len(shape) > 1 else shape
            total += num_bytes(DTYPE_NAMES[tensor.dtype], read)
    return total


class _Network:
    """Facts about a network that are needed to cut it."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph, self.nodes = graph, list(graph)
        self.position = {node: number for number, node in enumerate(self.nodes)}
        self.repeated: set[ir.Value] = set()  # values that depend on positions alone
        for node in self.nodes:
            if self._is_repeated(node):
                self.repeated |= set(node.outputs)
        self.num_caching = [0, *accumulate(map(caches_layer, self.nodes))]
        self.bytes_before = [0, *accumulate(map(decode_bytes, self.nodes))]
        self.crossing = cache(self._crossing)

    def _is_repeated(self, node: ir.Node) -> bool:
        computed = [value for value in node.inputs if value is not None and weight_tensor(value) is None]
        known = all(value in self.repeated or value.name == POSITION_IDS for value in computed)
        return known and not aliases_of(node) and decode_bytes(node) <= _MOST_REPEATED

    def _is_read_behind(self, cut: int, value: ir.Value) -> bool:
        return any(self.position[use.node] >= cut for use in value.uses())

    def _crossing(self, cut: int) -> list[ir.Value]:
        """The values that are sent if the operators from number ``cut`` on are in another stage, in their order."""
        found: dict[ir.Value, None] = {}
        for node in self.nodes[:cut]:
            for value in node.outputs:
                if self._is_read_behind(cut, value) and value not in self.repeated and not _is_stored(value):
                    found[sum_of_norm(value) or value] = None
        return list(found)

    def crossing_bytes(self, cut: int) -> int | None:
        """The bytes that cross for each token; None if a value other than float rows of all tokens would cross.

        Nor do caches cross that later layers read.
        """
        made = (value for node in self.nodes[:cut] for value in node.outputs)
        if any(_is_stored(value) and self._is_read_behind(cut, value) for value in made):
            return None
        total = 0
        for value in self.crossing(cut):
            rows, features = (*(dims(value) or ()), None, None)[:2]
            if value.dtype != ir.DataType.FLOAT or rows != NUM_TOKENS or not isinstance(features, int):
                return None
            total += num_bytes(DTYPE_NAMES[value.dtype], (features,))
        return total

    def cuts(self) -> list[int]:
        """The places where the fewest bytes cross, with layers that keep something on both sides."""
        total = self.num_caching[-1]
        inner = [cut for cut in range(1, len(self.nodes)) if 0 < self.num_caching[cut] < total]
        costs = {cut: cost for cut in inner if (cost := self.crossing_bytes(cut)) is not None}
        return [cut for cut, cost in costs.items() if cost == min(costs.values())]


def sum_of_norm(value: ir.Value) -> ir.Value | None:
    """The sum that ``value`` is the norm of, if one operator makes both."""
    producer = value.producer()
    if producer is None or producer.op_type not in ("RmsNorm", "LayerNorm"):
        return None
    made = results(producer)
    return made.get("sum") if made["y"] is value else None


def _choose_cuts(network: _Network, pp_size: int) -> list[int]:
    """The cuts whose most expensive stage is cheapest; among equal choices the first."""
    ends = [0, *network.cuts(), len(network.nodes)]
    # best[end]: if the stages so far end at ``end``, the cost of the most expensive stage, and the cuts.
    best: dict[int, tuple[int, list[int]]] = {0: (0, [])}
    for _ in range(pp_size):
        further: dict[int, tuple[int, list[int]]] = {}
        for end in ends:
            options = [
                (max(largest, network.bytes_before[end] - network.bytes_before[begin]), [*cuts, end])
                for begin, (largest, cuts) in best.items()
                if network.num_caching[begin] < network.num_caching[end]
            ]
            if options:
                further[end] = min(options)
        best = further
    if len(network.nodes) not in best:
        raise _too_many(network, pp_size)
    return best[len(network.nodes)][1][:-1]


def _too_many(network: _Network, pp_size: int) -> BuildError:
    """The error that names the places where the network can be cut."""
    cuts = network.cuts()
    places = [str(network.nodes[cut - 1].name) for cut in cuts]
    more = [f"and {len(places) - _MOST_NAMED} more"] if len(places) > _MOST_NAMED else []
    most = 1 + len({network.num_caching[cut] for cut in cuts})
    has_states = any(caches_of(nodes)[0] == STATE for nodes in layers_of(network.graph))
    kinds = "attention or states" if has_states else "attention"
    return BuildError(
        f"pp_size is {pp_size}, and this network can be cut into at most {most} stages with {kinds}, behind "
        f"{', '.join([*places[:_MOST_NAMED], *more]) or 'no operator'}: pass --pp_size {most} or less"
    )


def _stage(network: _Network, groups: Sequence[CacheGroup], begin: int, end: int) -> Stage:
    """The stage of operators ``begin`` to ``end`` - 1, with copies of earlier operators that it recomputes."""
    graph = network.graph.clone()
    nodes = list(graph)
    own = nodes[begin:end]
    values = {str(value.name): value for node in nodes for value in node.outputs}
    if begin > 0:
        values |= _receive(graph, [values[str(value.name)] for value in network.crossing(begin)], own)
    layers = [nodes for nodes in layers_of(graph) if nodes[0] in set(own)]
    updated = [node.outputs[position] for nodes in layers for node in nodes for position in aliases_of(node)]
    made = [value for value in graph.outputs if value.producer() in set(own) and not _is_stored(value)]
    sent = made if end == len(nodes) else [values[str(value.name)] for value in network.crossing(end)]
    graph.outputs.clear()
    graph.outputs.extend([*updated, *sent])
    remove_dead(graph)
    remove_unused_inputs(graph, list(graph.inputs))
    kept = {cache for nodes in layers for cache in caches_of(nodes)[1]}
    own_caches = [tuple(cache for cache in group.caches if cache in kept) for group in groups]
    own_groups = (replace(group, caches=caches) for group, caches in zip(groups, own_caches, strict=True))
    return Stage(graph, tuple(own_groups))


def _is_stored(value: ir.Value) -> bool:
    """Whether the value shares its storage with an input of its producer."""
    producer = value.producer()
    return producer is not None and producer.outputs.index(value) in aliases_of(producer)


def _receive(graph: ir.Graph, sent: Sequence[ir.Value], readers: Sequence[ir.Node]) -> dict[str, ir.Value]:
    """Let ``readers`` read graph inputs in place of the values ``sent`` and of norms of them; returns the inputs."""
    inputs = {value: value_of(str(value.name), ir.DataType.FLOAT, dims(value) or ()) for value in sent}
    graph.inputs.extend(inputs.values())
    for value, given in inputs.items():
        _replace_within(value, given, readers)
        norm = value.producer()
        assert norm is not None
        if sum_of_norm(norm.outputs[0]) is value and any(use.node in readers for use in norm.outputs[0].uses()):
            again = _norm_again(norm, given)
            graph.insert_before(readers[0], again)
            _replace_within(norm.outputs[0], again.outputs[0], readers)
    return {str(given.name): given for given in inputs.values()}


def _replace_within(value: ir.Value, new: ir.Value, readers: Sequence[ir.Node]) -> None:
    """Let those of ``readers`` that read ``value`` read ``new``."""
    within = set(readers)
    for node, position in list(value.uses()):
        if node in within:
            node.replace_input_with(position, new)


def _norm_again(norm: ir.Node, total: ir.Value) -> ir.Node:
    """A copy of ``norm`` that reads the sum ``total``, which is known, instead of its addends."""
    vectors = {name: value for name, value in operands(norm).items() if name not in ("x", "residual")}
    y = value_of(str(norm.outputs[0].name), ir.DataType.FLOAT, dims(norm.outputs[0]) or ())
    epsilon = {"epsilon": attribute(norm, "epsilon")}
    return fused_node(norm.op_type, str(norm.name), {"x": total, **vectors}, {"y": y}, epsilon)
