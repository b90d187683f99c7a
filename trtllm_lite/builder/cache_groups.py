"""Divides the layers into cache groups: which state each layer keeps of a sequence, and where it lies in the blocks.

Layers whose attention has the same window keep the same positions. Every KV cache block has the same number of places,
each for one layer of a group, so that one pool of blocks serves all groups, as in the hybrid allocator of vLLM. A
network with one kind of attention has one group.
"""

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from trtllm_lite.builder.graph import attribute
from trtllm_lite.engine.manifest import CacheGroup
from trtllm_lite.errors import BuildError
from trtllm_lite.plugins.schema import DOMAIN, all_schemas

# Largest share of places without a layer. With fewer places per block, fewer stay empty, but there are more groups.
_MOST_IDLE = 1 / 8


def assign_cache_groups(graph: ir.Graph, max_seq_len: int) -> tuple[CacheGroup, ...]:
    """Let each attention of ``graph`` read its group's block tables, and layers of equal place in groups share a cache.

    A window as long as the longest sequence counts as no window. Groups without a window come first, then by descending
    window. Raises BuildError for a network without attention.
    """
    nodes = dict(enumerate(layer_nodes(graph)))
    if not nodes:
        raise BuildError("expected a network with attention layers, found none: it cannot run as a decoder")
    layers: dict[int, list[int]] = {}
    for layer, node in nodes.items():
        window = attribute(node, "window", 0)
        layers.setdefault(window if window < max_seq_len else 0, []).append(layer)
    groups = _groups(layers)
    share_caches(graph, nodes, groups)
    for number, group in enumerate(groups):
        for layer in group.layers:
            nodes[layer].attributes["cache_group"] = ir.AttrInt64("cache_group", number)
    return groups


def caches_layer(node: ir.Node) -> bool:
    """Return whether ``node`` updates the caches of a layer."""
    return node.domain == DOMAIN and all_schemas()[node.op_type].caches_layer


def layer_nodes(graph: ir.Graph) -> list[ir.Node]:
    """Return the operators that update the caches of their layers, in order."""
    return [node for node in graph if caches_layer(node)]


def _groups(layers: dict[int, list[int]]) -> tuple[CacheGroup, ...]:
    """Divide the layers of each window into groups of at most as many layers as a block has places.

    Successive layers of a window go to its groups in turn, so that a pipeline stage has about equally many of each.
    """
    num_places = places_of_block([len(of_kind) for of_kind in layers.values()])
    groups = []
    for window in sorted(layers, key=lambda window: (window > 0, -window)):
        name, own = f"window_{window}" if window else "full", layers[window]
        count = -(-len(own) // num_places)
        for number in range(count):
            suffix = f".{number}" if number else ""
            groups.append(CacheGroup(name + suffix, window, tuple(own[number::count])))
    return tuple(groups)


def places_of_block(counts: Sequence[int]) -> int:
    """How many layers a block holds, given the number of layers of each kind: the smallest of these or a divisor of it.

    The result is the largest for which at most an eighth of all places are without a layer.
    """

    def num_idle(places: int) -> int:
        return sum(-count % places for count in counts)

    smallest, total = min(counts), sum(counts)
    divisors = [places for places in range(smallest, 0, -1) if smallest % places == 0]
    return next(places for places in divisors if num_idle(places) <= (total + num_idle(places)) * _MOST_IDLE)


def share_caches(graph: ir.Graph, nodes: Mapping[int, ir.Node], groups: Sequence[CacheGroup]) -> None:
    """Let layers of equal place in ``groups`` update one cache, one after the other, in blocks of their groups.

    ``nodes`` maps the number of each layer to its attention node, in order of layers.
    """
    places = {layer: place for group in groups for place, layer in enumerate(group.layers)}
    latest = dict[tuple[str, int], ir.Value]()
    for layer, node in nodes.items():
        schema = all_schemas()[node.op_type]
        outputs = {output.alias: position for position, output in enumerate(schema.outputs)}
        for cache in (argument.name for argument in schema.caches):
            position, before = schema.input_index(cache), latest.get((cache, places[layer]))
            if before is not None:
                own = node.inputs[position]
                assert own is not None
                node.replace_input_with(position, before)
                graph.inputs.remove(own)
                graph.outputs.remove(before)
            latest[cache, places[layer]] = node.outputs[outputs[cache]]
