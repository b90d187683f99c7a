"""Divides the layers into cache groups: which state each layer keeps of a sequence, and where it lies in the blocks.

What an operator keeps of a token, and of which kind that is, follows from its schema and the shapes of its caches.
Layers of one kind and window keep the same positions. Every KV cache block has the same number of places, each for one
layer of a group, so that one pool of blocks serves all groups, as in the hybrid allocator of vLLM. A network with one
kind of attention has one group.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import onnx_ir as ir

from trtllm_lite.builder.graph import attribute, dims, is_cache, operands
from trtllm_lite.common.vocabulary import DTYPES, FEATURES
from trtllm_lite.engine.manifest import Cache, CacheGroup
from trtllm_lite.errors import BuildError
from trtllm_lite.network.dtypes import DTYPE_NAMES
from trtllm_lite.plugins.schema import DOMAIN, all_schemas

# Largest share of places without a layer. With fewer places per block, fewer stay empty, but there are more groups.
_MOST_IDLE = 1 / 8
_OF_BLOCKS = ("num_blocks", "tokens_per_block")  # the axes of a cache that tokens do not have


def assign_cache_groups(graph: ir.Graph, max_seq_len: int) -> tuple[CacheGroup, ...]:
    """Let each attention of ``graph`` read its group's block tables, and layers of equal place in groups share a cache.

    A window as long as the longest sequence counts as no window. Groups without a window come first, then by descending
    window. Raises BuildError for a network without attention, or if layers keep different things of a token.
    """
    nodes = dict(enumerate(layer_nodes(graph)))
    if not nodes:
        raise BuildError("expected a network with attention layers, found none: it cannot run as a decoder")
    layers: dict[int, list[int]] = {}
    kept: dict[tuple[tuple[str, tuple[int, ...]], ...], str] = {}
    for layer, node in nodes.items():
        window = attribute(node, "window", 0)
        layers.setdefault(window if window < max_seq_len else 0, []).append(layer)
        _, caches = caches_of(node)
        kept.setdefault(tuple((cache.name, cache.shape) for cache in caches), str(node.name))
    if len(kept) > 1:
        shown = {name: " and ".join(f"{cache} {list(shape)}" for cache, shape in of) for of, name in kept.items()}
        found = "; ".join(f"{name} keeps {caches}" for name, caches in shown.items())
        raise BuildError(f"expected all layers to keep as much of a token, found that {found}")
    groups = _groups(layers, *caches_of(nodes[0]))
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


@dataclass(frozen=True)
class BlockLayout:
    """Where a block holds what each cache of layers keeps: ``offsets`` in bytes by the cache's name, side by side.

    The blocks of a cache are ``num_bytes`` apart.
    """

    offsets: Mapping[str, int]
    num_bytes: int


def block_layout(graph: ir.Graph, tokens_per_block: int, dtype_of: Callable[[ir.Value], str]) -> BlockLayout:
    """Lay out the caches of layers that ``graph`` has as inputs, in their order; ``dtype_of`` is how each is stored.

    Features, which another engine may read, have blocks of their own.
    """
    offsets, end = dict[str, int](), 0
    for value in graph.inputs:
        if is_cache(value) and value.name != FEATURES:
            extents = [tokens_per_block if dim == _OF_BLOCKS[1] else dim for dim in (dims(value) or ())[1:]]
            offsets[str(value.name)] = end
            end += prod(extent for extent in extents if isinstance(extent, int)) * DTYPES[dtype_of(value)].bits // 8
    return BlockLayout(offsets, end)


def groups_of_rank(groups: Sequence[CacheGroup], graph: ir.Graph) -> tuple[CacheGroup, ...]:
    """Return ``groups`` with what the layers of a rank's ``graph`` keep, which may be a part of the heads."""
    ((_, caches),) = {caches_of(node) for node in layer_nodes(graph)}
    return tuple(replace(group, caches=caches) for group in groups)


def caches_of(node: ir.Node) -> tuple[str, tuple[Cache, ...]]:
    """Return the kind of the caches that a layer's operator updates, without its window, and what they keep of a token.

    The types are those in the graph: backends may choose others.
    """
    arguments, given = all_schemas()[node.op_type].caches, operands(node)
    (kind,) = {argument.cache for argument in arguments}
    assert kind is not None
    caches = []
    for argument in arguments:
        value = given[argument.name]
        of_axes = zip(argument.shape, dims(value) or (), strict=True)
        extents = tuple(extent for axis, extent in of_axes if axis not in _OF_BLOCKS and isinstance(extent, int))
        assert len(extents) == len(argument.shape) - len(_OF_BLOCKS)
        assert value.dtype is not None
        caches.append(Cache(argument.name, DTYPE_NAMES[value.dtype], extents))
    return kind, tuple(caches)


def _groups(layers: dict[int, list[int]], kind: str, caches: tuple[Cache, ...]) -> tuple[CacheGroup, ...]:
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
            of_window = ("window" if window else kind, window, tuple(own[number::count]))
            groups.append(CacheGroup(name + suffix, *of_window, caches))
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
